// What a process ran out of, for messages: the limits that the system may have met.
#pragma once

#include <string>

namespace tessera {

/// Why memory may have been refused, and what helps: the limit on addresses, or what the node has.
std::string why_no_memory();

/// "cannot WHAT: Cannot allocate memory; ...": throws MemoryError with what was wanted.
[[noreturn]] void memory_refused(const std::string& what, int error_number);

/// The same for a thread: limits on a user's or a job's processes, or on addresses for its stack.
[[noreturn]] void thread_refused(const std::string& what, int error_number);

}  // namespace tessera
