#include "eval/text.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

TEST(Text, LowersLatinGreekAndCyrillic) {
  EXPECT_EQ(to_lower("Ab1_Z"), "ab1_z");
  EXPECT_EQ(to_lower("\u00C4\u00D6\u00DC \u00D7 \u0141\u017B \u0178"),
            "\u00E4\u00F6\u00FC \u00D7 \u0142\u017C \u00FF");
  EXPECT_EQ(to_lower("\u0391\u03A9\u0386 \u0410\u042F\u0401"),
            "\u03B1\u03C9\u03AC \u0430\u044F\u0451");
  EXPECT_EQ(to_lower("\u592A\u7956"), "\u592A\u7956");
}

TEST(Text, KeepsBytesThatAreNoUtf8) { EXPECT_EQ(to_lower("A\xFF\xC3"), "a\xFF\xC3"); }

TEST(Text, SplitsAtUnicodeSpaces) {
  const auto words = split_words("  a\tb\u00A0c\u3000d\n");
  ASSERT_EQ(words.size(), 4u);
  EXPECT_EQ(join_words(words), "a b c d");
  EXPECT_TRUE(split_words(" \n ").empty());
}

TEST(Text, TrimsBothEndsAlone) {
  EXPECT_EQ(trim(" \u00A0a b \n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

}  // namespace
}  // namespace qevict
