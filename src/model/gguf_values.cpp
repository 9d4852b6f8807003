// Typed access to the metadata of a validated GGUF file.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "model/gguf_file.h"

namespace qevict {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, std::uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::string short_number(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", x);
  return text;
}

// False where the element is no integer type or does not fit.
bool integer_at(const GgufValue& value, std::uint64_t i, std::int64_t& out) {
  switch (value.element) {
    case GgufType::Uint8:
      out = load<std::uint8_t>(value.bytes, i);
      return true;
    case GgufType::Int8:
      out = load<std::int8_t>(value.bytes, i);
      return true;
    case GgufType::Uint16:
      out = load<std::uint16_t>(value.bytes, i);
      return true;
    case GgufType::Int16:
      out = load<std::int16_t>(value.bytes, i);
      return true;
    case GgufType::Uint32:
      out = load<std::uint32_t>(value.bytes, i);
      return true;
    case GgufType::Int32:
      out = load<std::int32_t>(value.bytes, i);
      return true;
    case GgufType::Int64:
      out = load<std::int64_t>(value.bytes, i);
      return true;
    case GgufType::Uint64: {
      const auto x = load<std::uint64_t>(value.bytes, i);
      if (x > INT64_MAX) return false;
      out = static_cast<std::int64_t>(x);
      return true;
    }
    case GgufType::Float32:
    case GgufType::Float64:
    case GgufType::Bool:
    case GgufType::String:
    case GgufType::Array:
      return false;
  }
  return false;
}

}  // namespace

Result<const GgufValue*> GgufFile::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return error("metadata key " + quoted(key) + " is missing");
  return value;
}

std::unexpected<Error> GgufFile::wrong_type(std::string_view key, const GgufValue& value,
                                            const char* expected) const {
  std::string is = to_string(value.type);
  if (value.type == GgufType::Array) {
    is += " of " + std::to_string(value.count) + " " + to_string(value.element);
  }
  return error("metadata key " + quoted(key) + " is " + is + ", expected " + expected);
}

Result<std::int64_t> GgufFile::integer(std::string_view key, std::int64_t min,
                                       std::int64_t max) const {
  return uniform_integer(key, -1, min, max);
}

Result<std::int64_t> GgufFile::uniform_integer(std::string_view key, std::int64_t n,
                                               std::int64_t min, std::int64_t max) const {
  const Result<const GgufValue*> found = require(key);
  if (!found) return std::unexpected(found.error());
  const GgufValue& value = **found;
  const bool array = value.type == GgufType::Array;
  std::int64_t first = 0;
  if ((array && n < 0) || value.count == 0 || !integer_at(value, 0, first)) {
    return wrong_type(key, value, "an integer below 2^63");
  }
  if (array && value.count != static_cast<std::uint64_t>(n)) {
    return error("metadata key " + quoted(key) + " has " + std::to_string(value.count) +
                 " values for " + std::to_string(n) + " layers");
  }
  for (std::uint64_t i = 1; i < value.count; ++i) {
    std::int64_t other = 0;
    if (!integer_at(value, i, other) || other != first) {
      return error("metadata key " + quoted(key) + " differs between layers",
                   "use a model whose layers are alike");
    }
  }
  if (first < min || first > max) {
    return error("metadata key " + quoted(key) + " is " + std::to_string(first) + ", expected " +
                 std::to_string(min) + " to " + std::to_string(max));
  }
  return first;
}

Result<double> GgufFile::real(std::string_view key, double min, double max) const {
  const Result<const GgufValue*> found = require(key);
  if (!found) return std::unexpected(found.error());
  const GgufValue& value = **found;
  double x = 0.0;
  if (value.type == GgufType::Float32) {
    x = load<float>(value.bytes, 0);
  } else if (value.type == GgufType::Float64) {
    x = load<double>(value.bytes, 0);
  } else {
    return wrong_type(key, value, "float32");
  }
  if (!(x >= min && x <= max)) {
    return error("metadata key " + quoted(key) + " is " + short_number(x) + ", expected " +
                 short_number(min) + " to " + short_number(max));
  }
  return x;
}

Result<std::string_view> GgufFile::text(std::string_view key) const {
  const Result<const GgufValue*> found = require(key);
  if (!found) return std::unexpected(found.error());
  const GgufValue& value = **found;
  if (value.type != GgufType::String) return wrong_type(key, value, "string");
  const auto length = load<std::uint64_t>(value.bytes, 0);
  return std::string_view(reinterpret_cast<const char*>(value.bytes.data()) + sizeof(length),
                          length);
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  const Result<const GgufValue*> found = require(key);
  if (!found) return std::unexpected(found.error());
  if ((*found)->type != GgufType::Bool) return wrong_type(key, **found, "bool");
  return load<std::uint8_t>((*found)->bytes, 0) != 0;
}

Result<std::vector<std::string_view>> GgufFile::texts(std::string_view key) const {
  const Result<const GgufValue*> found = require(key);
  if (!found) return std::unexpected(found.error());
  const GgufValue& value = **found;
  if (value.type != GgufType::Array || value.element != GgufType::String) {
    return wrong_type(key, value, "array of strings");
  }
  std::vector<std::string_view> texts(value.count);
  const std::byte* at = value.bytes.data();
  for (std::string_view& text : texts) {
    std::uint64_t length = 0;
    std::memcpy(&length, at, sizeof(length));
    text = {reinterpret_cast<const char*>(at) + sizeof(length), static_cast<std::size_t>(length)};
    at += sizeof(length) + length;
  }
  return texts;
}

template <typename T>
T KeyReader::take(Result<T> result, T fallback) {
  if (result) return *result;
  if (status_) status_ = std::unexpected(result.error());
  return fallback;
}

int KeyReader::integer(std::string_view name, std::int64_t min, std::int64_t max) {
  return static_cast<int>(take(file_.integer(key(name), min, max), min));
}

int KeyReader::integer_or(std::string_view name, std::int64_t min, std::int64_t max, int fallback) {
  return has(name) ? integer(name, min, max) : fallback;
}

int KeyReader::uniform_integer(std::string_view name, std::int64_t n, std::int64_t min,
                               std::int64_t max) {
  return static_cast<int>(take(file_.uniform_integer(key(name), n, min, max), min));
}

double KeyReader::real(std::string_view name, double min, double max) {
  return take(file_.real(key(name), min, max), min);
}

double KeyReader::real_or(std::string_view name, double min, double max, double fallback) {
  return has(name) ? real(name, min, max) : fallback;
}

bool KeyReader::boolean_or(std::string_view name, bool fallback) {
  return has(name) ? take(file_.boolean(key(name)), fallback) : fallback;
}

std::string KeyReader::text_or(std::string_view name, std::string fallback) {
  if (!has(name)) return fallback;
  return std::string(take(file_.text(key(name)), std::string_view()));
}

void KeyReader::fail(const std::string& what, const std::string& advice) {
  if (status_) status_ = file_.error(what, advice);
}

}  // namespace qevict
