#include "model/gguf_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gguf_writer.h"

namespace qevict {
namespace {

using Bytes = std::vector<std::byte>;

// Writes GGUF bytes by hand, so that every field can be wrong.
class RawGguf {
 public:
  RawGguf() = default;
  template <typename T>
  RawGguf& put(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof(T));
    return *this;
  }
  RawGguf& text(const std::string& s) {
    put<std::uint64_t>(s.size());
    for (char c : s) put(c);
    return *this;
  }
  RawGguf& header(std::uint64_t n_tensors, std::uint64_t n_values, std::uint32_t version = 3) {
    for (char c : {'G', 'G', 'U', 'F'}) put(c);
    return put(version).put(n_tensors).put(n_values);
  }
  RawGguf& key(const std::string& name, GgufType type) {
    return text(name).put(static_cast<std::uint32_t>(type));
  }
  // An f32 tensor of n elements.
  RawGguf& tensor(const std::string& name, std::int64_t n, std::uint64_t offset,
                  std::uint32_t type = 0) {
    return text(name).put<std::uint32_t>(1).put(n).put(type).put(offset);
  }
  RawGguf& pad_to(std::size_t alignment, std::size_t extra = 0) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + extra);
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// The bytes must outlive the result.
Result<GgufFile> parse(RawGguf&& raw) = delete;
Result<GgufFile> parse(const RawGguf& raw) { return GgufFile::parse(raw.bytes(), "test.gguf"); }

// The error's text; "" where the bytes are accepted.
std::string error_of(const RawGguf& raw) {
  const auto file = parse(raw);
  if (file) return "";
  EXPECT_EQ(file.error().code, ErrorCode::BadInput);
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
  EXPECT_NE(file.error().message.find("(test.gguf): "), std::string::npos) << file.error().message;
  return file.error().message;
}

void expect_error(const RawGguf& raw, const std::string& part) {
  const std::string message = error_of(raw);
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" lacks " << part;
}

RawGguf small_file() {
  RawGguf raw;
  raw.header(2, 4);
  raw.key("name", GgufType::String).text("tiny");
  raw.key("count", GgufType::Uint32).put<std::uint32_t>(7);
  raw.key("eps", GgufType::Float32).put(0.5F);
  raw.key("words", GgufType::Array)
      .put<std::uint32_t>(8)
      .put<std::uint64_t>(2)
      .text("a")
      .text("bc");
  raw.tensor("x", 8, 0).tensor("y", 4, 32);
  return raw.pad_to(32, 48);
}

TEST(GgufFile, ReadsWhatWasWritten) {
  const RawGguf raw = small_file();
  const auto file = parse(raw);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->version(), 3);
  EXPECT_EQ(*file->text("name"), "tiny");
  EXPECT_EQ(*file->integer("count", 0, 10), 7);
  EXPECT_EQ(*file->real("eps", 0, 1), 0.5);
  EXPECT_EQ(file->texts("words")->at(1), "bc");
  ASSERT_NE(file->find_tensor("y"), nullptr);
  EXPECT_EQ(file->find_tensor("y")->n_bytes, 16U);
  EXPECT_EQ(file->find_tensor("y")->offset, file->find_tensor("x")->offset + 32);
  EXPECT_EQ(file->find_tensor("z"), nullptr);
}

TEST(GgufFile, RefusesEveryTruncation) {
  const Bytes whole = small_file().bytes();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const auto file = GgufFile::parse(std::span(whole).first(n), "test.gguf");
    ASSERT_FALSE(file) << n << " of " << whole.size() << " bytes were accepted";
    const bool says_missing = file.error().message.find("missing") != std::string::npos;
    EXPECT_TRUE(says_missing) << n << ": " << file.error().message;
  }
}

TEST(GgufFile, SaysHowManyBytesOfTensorsAreMissing) {
  Bytes bytes = small_file().bytes();
  bytes.resize(bytes.size() - 13);
  const auto file = GgufFile::parse(bytes, "test.gguf");
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message.find("13 bytes are missing"), std::string::npos)
      << file.error().message;
}

TEST(GgufFile, RefusesOtherFilesAndVersions) {
  expect_error(RawGguf().put('P').put('K').put('3').put('4'), "not a GGUF file");
  RawGguf pointer;
  for (char c : std::string("version https://git-lfs")) pointer.put(c);
  expect_error(pointer, "git lfs pull");
  expect_error(RawGguf().header(1, 0, 1), "version 1");
  expect_error(RawGguf().header(1, 0, 4), "version 4");
  expect_error(RawGguf().header(1, 0, 0x03000000), "big-endian");
}

TEST(GgufFile, RefusesHostileCounts) {
  expect_error(RawGguf().header(0, 0), "0 tensors");
  expect_error(RawGguf().header(~0ULL, 0), "18446744073709551615 tensors");
  expect_error(RawGguf().header(1, ~0ULL), "18446744073709551615 metadata keys");
  expect_error(RawGguf().header(200000, 0), "the file ends inside tensor 1");
  expect_error(RawGguf().header(1, 60000), "the file ends inside metadata key 1");
  // A length that wraps around when added to the position.
  expect_error(RawGguf().header(1, 1).put(~0ULL), "bytes are missing");
  expect_error(RawGguf().header(1, 1).text(std::string(70000, 'k')), "70000 bytes");
  expect_error(RawGguf().header(1, 1).text(""), "name of 0 bytes");
  expect_error(RawGguf().header(1, 1).key("s", GgufType::String).put(~0ULL - 3), "\"s\"");
  RawGguf array = RawGguf().header(1, 1).key("a", GgufType::Array);
  expect_error(RawGguf(array).put<std::uint32_t>(4).put(~0ULL), "18446744073709551615 elements");
  expect_error(RawGguf(array).put<std::uint32_t>(12).put<std::uint64_t>(1U << 30), "missing");
  expect_error(RawGguf(array).put<std::uint32_t>(8).put<std::uint64_t>(1U << 30), "missing");
}

TEST(GgufFile, RefusesUnknownAndNestedTypes) {
  expect_error(RawGguf().header(1, 1).text("k").put<std::uint32_t>(13), "unknown type 13");
  expect_error(RawGguf().header(1, 1).text("k").put<std::uint32_t>(~0U), "unknown type");
  RawGguf array = RawGguf().header(1, 1).key("k", GgufType::Array);
  expect_error(RawGguf(array).put<std::uint32_t>(9).put<std::uint64_t>(1), "nested");
  expect_error(RawGguf(array).put<std::uint32_t>(99).put<std::uint64_t>(1), "type 99");
}

TEST(GgufFile, RefusesDuplicateNames) {
  RawGguf keys;
  keys.header(1, 2).key("k", GgufType::Bool).put(true).key("k", GgufType::Bool).put(true);
  expect_error(keys, "\"k\" appears twice");
  expect_error(RawGguf().header(2, 0).tensor("t", 8, 0).tensor("t", 8, 32), "\"t\" appears twice");
}

TEST(GgufFile, RefusesBadTensors) {
  const auto one = [] { return RawGguf().header(1, 0); };
  expect_error(one().tensor(std::string(64, 'n'), 8, 0), "name of 64 bytes");
  expect_error(one().text("t").put<std::uint32_t>(0), "0 dimensions");
  expect_error(one().text("t").put<std::uint32_t>(5), "5 dimensions");
  expect_error(one().tensor("t", 0, 0), "0 elements");
  expect_error(one().tensor("t", -8, 0), "-8 elements");
  expect_error(one().tensor("t", 8, 0, 9999), "data type 9999");
  expect_error(one().tensor("t", 8, 0, 4), "data type 4");  // removed from ggml
  expect_error(one().tensor("t", 40, 0, 8), "not a multiple of the 32");
  expect_error(one().tensor("t", INT64_MAX, 0), "beyond 63 bits");
  RawGguf wide;
  wide.header(1, 0).text("t").put<std::uint32_t>(4);
  for (int i = 0; i < 4; ++i) wide.put<std::int64_t>(65536);
  expect_error(wide.put<std::uint32_t>(0).put<std::uint64_t>(0), "beyond 63 bits");
  expect_error(one().tensor("t", 8, 8), "not a multiple of the alignment 32");
  expect_error(one().tensor("t", 8, ~0ULL - 31), "beyond 64 bits");
  expect_error(one().tensor("t", 8, 1ULL << 40).pad_to(32, 64), "truncated");
  expect_error(RawGguf().header(2, 0).tensor("a", 16, 0).tensor("b", 8, 32).pad_to(32, 64),
               "\"a\" and \"b\" overlap");
}

TEST(GgufFile, ChecksTheAlignment) {
  const auto aligned = [](std::uint32_t alignment, std::uint64_t offset) {
    RawGguf raw;
    raw.header(1, 1).key("general.alignment", GgufType::Uint32).put(alignment);
    return raw.tensor("t", 8, offset).pad_to(64, 256);
  };
  EXPECT_EQ(error_of(aligned(64, 64)), "");
  expect_error(aligned(64, 32), "alignment 64");
  expect_error(aligned(0, 0), "general.alignment");
  expect_error(aligned(48, 0), "not a power of two");
  expect_error(aligned(1U << 31, 0), "general.alignment");
  RawGguf text;
  text.header(1, 1).key("general.alignment", GgufType::String).text("32").tensor("t", 8, 0);
  expect_error(text.pad_to(32, 32), "is string");
}

TEST(GgufFile, TypedReadsNameKeyValueAndLimit) {
  const RawGguf raw = small_file();
  const auto file = parse(raw);
  ASSERT_TRUE(file);
  EXPECT_NE(file->integer("absent", 0, 1).error().message.find("\"absent\" is missing"),
            std::string::npos);
  EXPECT_NE(file->integer("count", 8, 9).error().message.find("\"count\" is 7, expected 8 to 9"),
            std::string::npos);
  EXPECT_NE(file->integer("name", 0, 1).error().message.find("is string"), std::string::npos);
  EXPECT_NE(file->text("count").error().message.find("is uint32, expected string"),
            std::string::npos);
  EXPECT_NE(file->real("eps", 0.6, 1).error().message.find("is 0.5"), std::string::npos);
  EXPECT_NE(file->texts("name").error().message.find("array of strings"), std::string::npos);
  EXPECT_FALSE(file->boolean("count"));
}

TEST(GgufFile, MakesHostileTextSafeForMessages) {
  RawGguf raw;
  raw.header(1, 2);
  const std::string name = std::string("evil\n\x1b[31m\xff") + std::string(200, 'x');
  raw.key(name, GgufType::Bool).put(true).key(name, GgufType::Bool).put(true);
  const std::string message = error_of(raw);
  EXPECT_LT(message.size(), 300U);
  for (char c : message) EXPECT_TRUE(c >= ' ' && c < 127);
}

TEST(GgufFile, NoFlippedByteIsFatal) {
  const Bytes whole = small_file().bytes();
  int accepted = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bytes = whole;
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      const auto file = GgufFile::parse(bytes, "test.gguf");
      if (!file) continue;
      ++accepted;
      for (const GgufTensor& tensor : file->tensors()) {
        ASSERT_LE(tensor.offset + tensor.n_bytes, bytes.size());
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(GgufFile, OpensMappedAndInMemory) {
  const std::filesystem::path path = temp_model_path("gguf_file");
  const Bytes bytes = small_file().bytes();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  for (bool mapped : {true, false}) {
    auto file = GgufFile::open(path.string(), mapped);
    ASSERT_TRUE(file) << file.error().message;
    const GgufFile moved = std::move(*file);
    EXPECT_EQ(moved.is_mapped(), mapped);
    EXPECT_EQ(*moved.text("name"), "tiny");
    EXPECT_EQ(std::memcmp(moved.data().data(), bytes.data(), bytes.size()), 0);
  }
  std::filesystem::remove(path);
  EXPECT_NE(GgufFile::open(path.string(), true).error().message.find("cannot open"),
            std::string::npos);
  const auto folder = GgufFile::open(path.parent_path().string(), true);
  EXPECT_NE(folder.error().message.find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace qevict
