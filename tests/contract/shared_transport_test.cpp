// SPDX-License-Identifier: Apache-2.0
// Messages through shared memory and sockets: every byte arrives once, in order of its tag, whatever the order of the
// receives.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>

#include "comm/host/shared_transport.h"
#include "comm/host/socket_transport.h"
#include "comm/side_channel.h"
#include "comm/sockets.h"
#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

/// Areas of `size` ranks, in this process's memory.
struct Areas {
  explicit Areas(int size) : bytes(shared_area_bytes(size)), memory(static_cast<size_t>(size * bytes + 64)) {
    const auto base = reinterpret_cast<uintptr_t>(memory.data());
    std::byte* first = memory.data() + (64 - base % 64) % 64;
    for (int r = 0; r < size; ++r) {
      areas.push_back(first + r * bytes);
      prepare_shared_area(areas.back(), size);
    }
  }
  std::unique_ptr<HostTransport> transport(int rank) const {
    std::vector<int> names(areas.size());
    std::iota(names.begin(), names.end(), 10);
    return make_shared_transport(areas, rank, names, nullptr);
  }
  int64_t bytes;
  std::vector<std::byte> memory;
  std::vector<std::byte*> areas;
};

/// Ranks that are threads, connected by sockets.
struct Connected {
  /// Rank `unwilling` wants no sockets; with -1 all ranks want them.
  explicit Connected(int size, int unwilling = -1) : of_rank(static_cast<size_t>(size)) {
    std::vector<std::string> texts(static_cast<size_t>(size));
    std::barrier together(size);
    std::vector<std::thread> ranks;
    for (int me = 0; me < size; ++me)
      ranks.emplace_back([&, me] {
        std::vector<bool> far(static_cast<size_t>(size), true);
        far[static_cast<size_t>(me)] = false;
        of_rank[static_cast<size_t>(me)] = connect_sockets(me, far, me != unwilling, [&](const std::string& text) {
          together.arrive_and_wait();
          texts[static_cast<size_t>(me)] = text;
          together.arrive_and_wait();
          return texts;
        });
      });
    for (std::thread& rank : ranks) rank.join();
  }
  std::unique_ptr<HostTransport> transport(int rank) {
    return make_socket_transport(std::move(of_rank[static_cast<size_t>(rank)]), rank);
  }
  std::vector<Sockets> of_rank;
};

void finish(HostTransport& transport, std::vector<int>& seen) {
  while (transport.outstanding() > 0) {
    uint64_t tokens[4];
    const int count = transport.poll(tokens, 4);
    for (int i = 0; i < count; ++i) ++seen[tokens[i]];
    if (count == 0) transport.wait(5'000'000);
  }
}

}  // namespace

TEST_CASE("messages of all sizes between all ranks arrive whole, in any order of the receives") {
  constexpr int kRanks = 3, kMessages = 40, kTags = 4;
  constexpr uint64_t kSeed = 20261121;
  const bool through_sockets = GENERATE(false, true);
  INFO("seed " << kSeed << (through_sockets ? ", sockets" : ", shared memory"));
  const Areas shared(kRanks);
  Connected connected(through_sockets ? kRanks : 0);
  // The sizes pass the end of the ring several times and hit its edges: 0, 1, and a header more or less.
  const auto size_of_message = [&](int from, int to, int i) -> int64_t {
    const Philox random(kSeed, "sizes");
    const uint64_t at = static_cast<uint64_t>((from * kRanks + to) * kMessages + i);
    switch (random.below(4 * at, 5)) {
      case 0:
        return static_cast<int64_t>(random.below(4 * at + 1, 34));
      case 1:
        return (256 << 10) + static_cast<int64_t>(random.below(4 * at + 1, 33)) - 16;
      case 2:
        return (1 << 20) + static_cast<int64_t>(random.below(4 * at + 1, 1000));
      default:
        return static_cast<int64_t>(random.below(4 * at + 1, 5000));
    }
  };
  const auto byte_of = [](int from, int to, int i, int64_t at) {
    return static_cast<std::byte>(from * 7 + to * 31 + i * 13 + at * 3 + at / 251);
  };
  std::vector<std::vector<std::string>> failures(kRanks);
  std::vector<std::thread> ranks;
  for (int me = 0; me < kRanks; ++me)
    ranks.emplace_back([&, me] {
      const auto transport = through_sockets ? connected.transport(me) : shared.transport(me);
      std::vector<std::vector<std::byte>> sent, received;
      std::vector<std::array<int, 2>> of;
      std::vector<int> seen(static_cast<size_t>(2 * kRanks * kMessages), 0);
      const Philox random(kSeed, fmt::format("order {}", me));
      uint64_t token = 0;
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == me) continue;
        // Tag t carries messages t, t + kTags, ...: they are received tag by tag, which is not the order in which they
        // are sent.
        for (int t = kTags; t-- > 0;)
          for (int i = t; i < kMessages; i += kTags) {
            received.emplace_back(static_cast<size_t>(size_of_message(peer, me, i)));
            of.push_back({peer, i});
          }
      }
      size_t asked = 0;
      for (int i = 0; i < kMessages; ++i)
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == me) continue;
          std::vector<std::byte>& data = sent.emplace_back(static_cast<size_t>(size_of_message(me, peer, i)));
          for (size_t at = 0; at < data.size(); ++at) data[at] = byte_of(me, peer, i, static_cast<int64_t>(at));
          transport->send(peer, i % kTags, data.data(), static_cast<int64_t>(data.size()), token++);
          if (random.below(token, 2) == 0 && asked < received.size()) {
            transport->recv(of[asked][0], of[asked][1] % kTags, received[asked].data(),
                            static_cast<int64_t>(received[asked].size()), token++);
            ++asked;
          }
          uint64_t tokens[3];
          const int count = transport->poll(tokens, 3);
          for (int k = 0; k < count; ++k) ++seen[tokens[k]];
        }
      for (; asked < received.size(); ++asked)
        transport->recv(of[asked][0], of[asked][1] % kTags, received[asked].data(),
                        static_cast<int64_t>(received[asked].size()), token++);
      finish(*transport, seen);
      for (uint64_t k = 0; k < token; ++k)
        if (seen[k] != 1)
          failures[static_cast<size_t>(me)].push_back(fmt::format("token {} completed {} times", k, seen[k]));
      for (size_t k = 0; k < received.size(); ++k)
        for (size_t at = 0; at < received[k].size(); ++at)
          if (received[k][at] != byte_of(of[k][0], me, of[k][1], static_cast<int64_t>(at))) {
            failures[static_cast<size_t>(me)].push_back(
                fmt::format("message {} of rank {} differs at byte {}", of[k][1], of[k][0], at));
            break;
          }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& of_rank : failures)
    for (const std::string& failure : of_rank) FAIL_CHECK(failure);
}

TEST_CASE("a message of another size than expected is refused with both numbers") {
  const Areas shared(2);
  const auto sender = shared.transport(0), receiver = shared.transport(1);
  std::vector<std::byte> data(100);
  sender->send(1, 0, data.data(), 100, 0);
  const bool asked_first = GENERATE(false, true);
  uint64_t tokens[4];
  const auto receive = [&] {
    if (!asked_first) receiver->poll(tokens, 4), receiver->poll(tokens, 4);
    receiver->recv(0, 0, data.data(), 96, 1);
    receiver->poll(tokens, 4);
  };
  REQUIRE_THROWS_AS(receive(), CommError);
}

TEST_CASE("an abort wakes a rank that waits for a peer") {
  const Areas shared(2);
  const auto waiting = shared.transport(0);
  std::byte nothing{};
  waiting->recv(1, 0, &nothing, 1, 0);
  CHECK(waiting->waiting_for() == "rank 11");
  uint64_t tokens[1];
  REQUIRE(waiting->poll(tokens, 1) == 0);
  std::thread other([&] { waiting->abort(); });
  while (!waiting->is_aborted()) waiting->wait(900'000'000);
  other.join();
  waiting->cancel();
  CHECK(waiting->outstanding() == 0);
}

TEST_CASE("ranks that cannot all connect have no sockets") {
  const Connected connected(3, 1);
  CHECK(std::all_of(connected.of_rank.begin(), connected.of_rank.end(), [](const Sockets& of) { return of.empty(); }));
}

TEST_CASE("a peer that is gone is waited for by name, and no call fails or spins") {
  Connected connected(2);
  const auto waiting = connected.transport(0);
  connected.transport(1).reset();  // its sockets close
  std::byte nothing{};
  waiting->recv(1, 0, &nothing, 1, 0);
  uint64_t tokens[1];
  for (int i = 0; i < 3; ++i) {
    CHECK(waiting->poll(tokens, 1) == 0);
    waiting->wait(1'000'000);
  }
  waiting->send(1, 0, &nothing, 1, 1);
  waiting->send(1, 0, &nothing, 1, 2);
  for (int i = 0; i < 3; ++i) waiting->poll(tokens, 1);
  CHECK(waiting->waiting_for() == "rank 1");
  waiting->cancel();
}

TEST_CASE("sockets listen in the networks that the launcher chose for MPI") {
  constexpr const char* kChosen = "OMPI_MCA_btl_tcp_if_include";
  const std::string before = std::getenv(kChosen) ? std::getenv(kChosen) : "";
  const auto addresses_in = [&](const char* networks) {
    ::setenv(kChosen, networks, 1);
    const Listener listener = listen_on_free_port(1, false);
    ::close(listener.descriptor);
    return listener.addresses.substr(listener.addresses.find(' '));
  };
  const std::string all = addresses_in("");
  CHECK(addresses_in("no_interface,203.0.113.0/24") == " 127.0.0.1");
  CHECK(addresses_in("0.0.0.0/0") == all);
  if (const std::string first = all.substr(1, all.find(' ', 1) - 1); first != "127.0.0.1")
    CHECK(addresses_in(("203.0.113.0/24," + first + "/32").c_str()) == " " + first + " 127.0.0.1");
  ::setenv(kChosen, before.c_str(), 1);
}

namespace {

/// Sends `bytes` to a listening rank ("PORT ADDRESS ..") and returns the first byte of its answer; none if the
/// connection ends or nothing comes, '!' without a connection.
std::optional<char> answer_to(const std::string& addresses, const std::string& bytes, int milliseconds) {
  std::istringstream words(addresses);
  uint16_t port = 0;
  std::string address;
  words >> port >> address;
  const int descriptor = dial(address, port);
  if (descriptor < 0 || ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL) != std::ssize(bytes)) return '!';
  char answer = 0;
  const bool came = await_socket(descriptor, POLLIN, milliseconds) && ::recv(descriptor, &answer, 1, 0) == 1;
  ::close(descriptor);
  return came ? std::optional(answer) : std::nullopt;
}

}  // namespace

TEST_CASE("data sockets: a connection with another token is closed without an answer, and the rank still joins") {
  std::vector<std::string> texts(2);
  std::barrier together(2);
  std::optional<char> of_stranger, of_known;
  std::vector<Sockets> sockets(2);
  std::vector<std::thread> ranks;
  for (int me = 0; me < 2; ++me)
    ranks.emplace_back([&, me] {
      std::vector<bool> far{me != 0, me != 1};
      bool has_tried = false;
      sockets[static_cast<size_t>(me)] = connect_sockets(me, far, true, [&](const std::string& text) {
        together.arrive_and_wait();
        texts[static_cast<size_t>(me)] = text;
        together.arrive_and_wait();
        if (me == 1 && !has_tried) {
          has_tried = true;
          // The message is "TOKEN PORT ADDRESS ..". Before rank 1 greets, strangers claim to be it: one has a changed
          // token, the other names a rank that is not expected.
          const std::string token = texts[0].substr(0, 16), at = texts[0].substr(17);
          std::string other = token;
          other.back() = other.back() == '0' ? '1' : '0';
          const std::string rank_1("\1\0\0\0", 4), rank_7("\7\0\0\0", 4);
          of_stranger = answer_to(at, other + rank_1, 2000);
          of_known = answer_to(at, token + rank_7, 2000);
        }
        return texts;
      });
    });
  for (std::thread& rank : ranks) rank.join();
  CHECK(!of_stranger);
  CHECK(!of_known);
  REQUIRE(sockets[0].size() == 2);
  CHECK(sockets[0][1] >= 0);
  CHECK(sockets[1][0] >= 0);
}

TEST_CASE("data sockets: a rank does not stay connected to a listener that answers with another token") {
  // A listener that is not the rank: it answers any greeting with zeros.
  const Listener impostor = listen_on_free_port(1, true);
  std::thread answers([&] {
    if (!await_socket(impostor.descriptor, POLLIN, 5000)) return;
    const int descriptor = accept_from(impostor.descriptor);
    char greeting[20];
    for (size_t got = 0; got < sizeof greeting && await_socket(descriptor, POLLIN, 5000);)
      got += static_cast<size_t>(std::max<ssize_t>(1, ::recv(descriptor, greeting, sizeof greeting - got, 0)));
    const std::string zeros(16, '0');
    ::send(descriptor, zeros.data(), zeros.size(), MSG_NOSIGNAL);
    await_socket(descriptor, POLLIN, 1000);
    ::close(descriptor);
  });
  const Sockets sockets = connect_sockets(1, {true, false}, true, [&](const std::string& text) {
    // Rank 0 has the impostor's address. In the second exchange, it tells that it has connected.
    const std::string of_rank_0 = text.size() > 1 ? "00000000000000a1 " + impostor.addresses : text;
    return std::vector<std::string>{of_rank_0, text};
  });
  answers.join();
  ::close(impostor.descriptor);
  CHECK((sockets.empty() || sockets[0] < 0));
}

TEST_CASE("side channel: only a greeting with the token joins, and only rank 0 with the token is taken") {
  const auto frame = [](const std::string& body) {
    const auto size = static_cast<uint32_t>(body.size());
    return std::string(reinterpret_cast<const char*>(&size), 4) + "g" + body;
  };
  const auto listening = SideChannel::listen(3, true, "token");
  const auto serve = [&](SideChannel& channel, const std::function<bool()>& done) {
    for (int tries = 0; tries < 100 && !done(); ++tries) channel.wait(std::chrono::milliseconds(50), -1);
  };
  for (const char* greeting : {"1 tokem", "1 toke", "1 token2", "1", "0 token", "3 token", "x token"}) {
    INFO(greeting);
    std::atomic<bool> ended = false;
    std::optional<char> answer;
    std::thread stranger([&] {
      answer = answer_to(listening->addresses(), frame(greeting), 5000);
      ended = true;
    });
    serve(*listening, [&] { return ended.load(); });
    stranger.join();
    CHECK(!answer);
    for (const int rank : {0, 1, 2}) CHECK(!listening->reaches(rank));
  }
  std::unique_ptr<SideChannel> wrong, right;
  std::atomic<bool> ended = false;
  std::thread joins([&] {
    wrong = SideChannel::connect(2, listening->addresses(), true, "tokem");
    right = SideChannel::connect(1, listening->addresses(), true, "token");
    ended = true;
  });
  serve(*listening, [&] { return ended.load(); });
  joins.join();
  CHECK(!wrong->reaches(0));
  CHECK(!listening->reaches(2));
  CHECK(right->reaches(0));
  CHECK(listening->reaches(1));

  // A listener that answers with another token, as a process does that took the port of a rank 0 that is gone.
  const Listener impostor = listen_on_free_port(1, true);
  std::thread answers([&] {
    if (!await_socket(impostor.descriptor, POLLIN, 5000)) return;
    const int descriptor = accept_from(impostor.descriptor);
    const std::string answer = frame("tokem");
    ::send(descriptor, answer.data(), answer.size(), MSG_NOSIGNAL);
    await_socket(descriptor, POLLIN, 3000);
    ::close(descriptor);
  });
  CHECK(!SideChannel::connect(1, impostor.addresses, true, "token")->reaches(0));
  answers.join();
  ::close(impostor.descriptor);
}
