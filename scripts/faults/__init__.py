# SPDX-License-Identifier: Apache-2.0
"""The fault drill: job.py starts runs and watches them, classes.py and damage.py have the faults."""
