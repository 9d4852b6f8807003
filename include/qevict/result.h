// Errors as values: Result<T>, Status, Error.
//
// Everything that can go wrong because of input, a file or a resource is returned, never thrown and
// never aborted on. Caller bugs are QE_CHECK's business (src/base/check.h).
// Thread safety: plain values.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace qevict {

enum class ErrorCode {
  BadInput,     // usage, file content, request: exit code 2
  Runtime,      // I/O, memory, a computation that failed: exit code 1
  Interrupted,  // cancelled by the user: exit code 130
};

// `message` reads "WHAT (WHERE): WHAT TO DO", on one line.
struct Error {
  ErrorCode code = ErrorCode::Runtime;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

inline std::unexpected<Error> bad_input(std::string message) {
  return std::unexpected<Error>(Error{ErrorCode::BadInput, std::move(message)});
}
inline std::unexpected<Error> runtime_error(std::string message) {
  return std::unexpected<Error>(Error{ErrorCode::Runtime, std::move(message)});
}
inline std::unexpected<Error> interrupted(std::string message) {
  return std::unexpected<Error>(Error{ErrorCode::Interrupted, std::move(message)});
}

}  // namespace qevict
