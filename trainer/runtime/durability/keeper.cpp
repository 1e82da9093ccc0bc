// SPDX-License-Identifier: Apache-2.0
// The keeper's loop, and requests to it. Request and answer are one packet each, with a memory file if one is passed
// on.

#include "trainer/runtime/durability/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kIdleSeconds = 1800;
constexpr int kAnswerSeconds = 10;
// With these seals, another process that holds the file cannot change its size, which would end the processes that map
// it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPacketBytes = size_t{1} << 18;

struct Address {
  sockaddr_un path{};
  socklen_t size = 0;
};

/// The address is abstract, so that no file can remain.
Address address_of(const std::string& name) {
  Address address;
  const std::string path = fmt::format("slipstream-keeper-{}-{}", ::getuid(), name);
  address.path.sun_family = AF_UNIX;
  SLIP_ASSERT(path.size() + 1 < sizeof address.path.sun_path);
  std::memcpy(address.path.sun_path + 1, path.data(), path.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return address;
}

/// Returns the user whose process listens at the other end, or connected from there, or -1 if the kernel does not tell.
int64_t peer_of(int socket) {
  ucred owner{};
  socklen_t size = sizeof owner;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0 ? int64_t{owner.uid} : -1;
}

int make_socket() { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

bool send_packet(int socket, std::string_view text, int file) {
  iovec bytes{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &file, sizeof file);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == std::ssize(text);
}

/// Returns none at the end of the connection. `file` is -1 if the packet has no file.
std::optional<std::string> receive_packet(int socket, int& file) {
  std::string text(kPacketBytes, '\0');
  iovec bytes{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  file = -1;
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
    if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
      std::memcpy(&file, CMSG_DATA(head), sizeof file);
  if (got <= 0) return {};
  text.resize(static_cast<size_t>(got));
  return text;
}

/// The entries and connections of the keeper's process.
class Table {
 public:
  explicit Table(int listener) : listener_(listener) {}

  void serve(int64_t idle_seconds) {
    while (true) {
      std::vector<pollfd> waits{{listener_, POLLIN, 0}};
      for (const int client : clients_) waits.push_back({client, POLLIN, 0});
      const int limit_ms = clients_.empty() ? static_cast<int>(ended_ ? 0 : idle_seconds * 1000) : -1;
      const int ready = ::poll(waits.data(), waits.size(), limit_ms);
      if (ready < 0 && errno != EINTR) return;
      if (ready == 0) return;
      if (ready < 0) continue;
      if (waits[0].revents != 0) accept();
      for (size_t i = 1; i < waits.size(); ++i)
        if (waits[i].revents != 0 && !answer(waits[i].fd)) {
          ::close(waits[i].fd);
          std::erase(clients_, waits[i].fd);
        }
    }
  }

 private:
  void accept() {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    if (peer_of(client) != ::getuid()) {
      ::close(client);
      return;
    }
    clients_.push_back(client);
  }

  /// Answers a request. Returns false at the end of the connection.
  bool answer(int client) {
    int file = -1;
    const std::optional<std::string> request = receive_packet(client, file);
    if (!request) return false;
    const size_t space = std::min(request->find(' '), request->size());
    const std::string verb = request->substr(0, space), entry = request->substr(std::min(space + 1, request->size()));
    if (verb == "put" && file >= 0) {
      drop(entry);
      entries_[entry] = file;
      ended_ = false;
      return send_packet(client, "done", -1);
    }
    if (file >= 0) ::close(file);
    if (verb == "get") {
      const auto found = entries_.find(entry);
      return send_packet(client, found == entries_.end() ? "none" : "done",
                         found == entries_.end() ? -1 : found->second);
    }
    if (verb == "list") {
      std::string names = "done";
      for (const auto& [name, _] : entries_) names += "\n" + name;
      return send_packet(client, names, -1);
    }
    if (verb == "drop") drop(entry);
    if (verb == "end") {
      for (const auto& [_, held] : entries_) ::close(held);
      entries_.clear();
      ended_ = true;
    }
    return send_packet(client, "done", -1);
  }

  void drop(const std::string& entry) {
    const auto found = entries_.find(entry);
    if (found == entries_.end()) return;
    ::close(found->second);
    entries_.erase(found);
  }

  int listener_;
  bool ended_ = false;
  std::vector<int> clients_;
  std::map<std::string, int> entries_;
};

/// Returns the memory that this host can give without swapping; unlimited if the host does not tell.
int64_t available_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key; info.ignore(4096, '\n')) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && info >> kib) return kib * kKiB;
  }
  return INT64_MAX;
}

/// Blocks. Starts this program again as a keeper. The keeper has a session of its own and none of this process's files,
/// so that it outlives the launcher's signals, and the launcher does not wait for it.
bool spawn(const std::string& name) {
  char program[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", program, sizeof program - 1) <= 0) return false;
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  if (::posix_spawn_file_actions_init(&files) != 0) return false;
  if (::posix_spawnattr_init(&attributes) != 0) {
    ::posix_spawn_file_actions_destroy(&files);
    return false;
  }
  for (const int standard : {0, 1, 2})
    ::posix_spawn_file_actions_addopen(&files, standard, "/dev/null", standard == 0 ? O_RDONLY : O_WRONLY, 0);
  ::posix_spawn_file_actions_addclosefrom_np(&files, 3);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  std::string command = "keeper", limit = fmt::format("{}", kIdleSeconds), entry = name;
  char* const arguments[] = {program, command.data(), entry.data(), limit.data(), nullptr};
  char* const environment[] = {nullptr};  // the keeper is no rank of the launcher's job
  pid_t child = 0;
  const bool started = ::posix_spawn(&child, program, &files, &attributes, arguments, environment) == 0;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  int status = 0;
  while (started && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return started && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::unique_ptr<KeptMemory> KeptMemory::make(int64_t size_bytes) {
  // Linux would end processes of this host before it refuses the memory.
  const bool fits = size_bytes < available_bytes();
  const int file = fits ? ::memfd_create("slipstream-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
  int error = !fits ? ENOMEM : file < 0 ? errno : 0;
  if (error == 0) error = ::posix_fallocate(file, 0, size_bytes);
  if (error == 0 && ::fcntl(file, F_ADD_SEALS, kSeals) != 0) error = errno;
  std::unique_ptr<KeptMemory> memory = error == 0 ? adopt(file) : nullptr;
  if (memory) return memory;
  if (error != 0 && file >= 0) ::close(file);
  throw ResourceError(
      "[plan] this host refuses {} for snapshots of the training state: {}. Set checkpoint.peer_interval = 0, or use "
      "fewer ranks here.",
      format_bytes(size_bytes), std::strerror(error != 0 ? error : ENOMEM));
}

std::unique_ptr<KeptMemory> KeptMemory::adopt(int file) {
  struct stat info {};
  void* at = MAP_FAILED;
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (seals >= 0 && (seals & kSeals) == kSeals && ::fstat(file, &info) == 0 && info.st_size > 0)
    at = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) {
    ::close(file);
    return nullptr;
  }
  return std::unique_ptr<KeptMemory>(
      new KeptMemory(file, {static_cast<std::byte*>(at), static_cast<size_t>(info.st_size)}));
}

KeptMemory::~KeptMemory() {
  ::munmap(bytes_.data(), bytes_.size());
  ::close(file_);
}

namespace {

/// Returns -1 if no process listens.
int connect_to(const std::string& name) {
  const int socket = make_socket();
  const Address address = address_of(name);
  if (socket < 0 || ::connect(socket, reinterpret_cast<const sockaddr*>(&address.path), address.size) == 0)
    return socket;
  ::close(socket);
  return -1;
}

}  // namespace

void Keeper::require_own(const std::string& name) {
  const int socket = connect_to(name);
  if (socket < 0) return;
  const int64_t user = peer_of(socket);
  ::close(socket);
  if (user != ::getuid())
    throw ResourceError(
        "[keeper] user {} listens at the address of this run's snapshots in memory, but this user is {}. End that "
        "process, or set checkpoint.peer_interval = 0 to train without these snapshots.",
        user, ::getuid());
}

std::unique_ptr<Keeper> Keeper::find(const std::string& name) {
  const int socket = connect_to(name);
  if (socket < 0) return nullptr;
  // Any user can listen at this address, and another user must not receive the training state.
  if (peer_of(socket) != ::getuid()) {
    ::close(socket);
    return nullptr;
  }
  const timeval limit{kAnswerSeconds, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return std::unique_ptr<Keeper>(new Keeper(socket));
}

std::unique_ptr<Keeper> Keeper::start(const std::string& name) {
  if (std::unique_ptr<Keeper> found = find(name)) return found;
  if (!spawn(name)) return nullptr;
  for (int attempt = 0; attempt < 100; ++attempt) {  // a keeper that another rank has started may not listen yet
    if (std::unique_ptr<Keeper> found = find(name)) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return nullptr;
}

Keeper::~Keeper() { ::close(socket_); }

bool Keeper::lives() const {
  pollfd seen{socket_, 0, 0};
  return ::poll(&seen, 1, 0) >= 0 && (seen.revents & (POLLHUP | POLLERR)) == 0;
}

std::optional<std::string> Keeper::ask(const std::string& request, int* file) {
  if (!send_packet(socket_, request, file ? *file : -1)) return {};
  int received = -1;
  std::optional<std::string> answer = receive_packet(socket_, received);
  if (file)
    *file = received;
  else if (received >= 0)
    ::close(received);
  return answer;
}

bool Keeper::put(const std::string& entry, const KeptMemory& memory) {
  int file = memory.file();
  return ask("put " + entry, &file) == "done";
}

std::unique_ptr<KeptMemory> Keeper::get(const std::string& entry) {
  int file = -1;
  ask("get " + entry, &file);
  return file < 0 ? nullptr : KeptMemory::adopt(file);
}

std::vector<std::string> Keeper::list() {
  const std::string answer = ask("list").value_or("");
  std::vector<std::string> names;
  for (size_t at = answer.find('\n'); at != std::string::npos;) {
    const size_t end = answer.find('\n', at + 1);
    names.push_back(answer.substr(at + 1, end == std::string::npos ? end : end - at - 1));
    at = end;
  }
  return names;
}

void Keeper::drop(const std::string& entry) { ask("drop " + entry); }
void Keeper::end() { ask("end"); }

void keep(const std::string& name, int64_t idle_seconds) {
  const int listener = make_socket();
  const Address address = address_of(name);
  if (listener < 0) throw ResourceError("[keeper] no socket: {}.", std::strerror(errno));
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address.path), address.size) != 0) {
    const int error = errno;
    ::close(listener);
    if (error == EADDRINUSE) return;  // another rank was faster
    throw ResourceError("[keeper] {} cannot listen: {}.", name, std::strerror(error));
  }
  const pid_t child = ::listen(listener, 1024) == 0 ? ::fork() : -1;
  if (child != 0) ::close(listener);
  if (child < 0) throw ResourceError("[keeper] {} cannot start: {}.", name, std::strerror(errno));
  if (child > 0) return;
  ::setsid();
  if (::chdir("/") != 0) ::_exit(1);  // so that it keeps no folder in use
  Table(listener).serve(idle_seconds);
  ::_exit(0);
}

}  // namespace slipstream::runtime
