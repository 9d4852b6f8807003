#include "qevict/config.h"

#include <gtest/gtest.h>

#include <limits>

namespace qevict {
namespace {

using Unit = KvBudget::Unit;

TEST(KvBudget, ParsesFractionsBytesAndTokens) {
  const struct {
    const char* text;
    Unit unit;
    double value;
  } cases[] = {{"0.2", Unit::Ratio, 0.2},
               {"20%", Unit::Ratio, 0.2},
               {"1", Unit::Ratio, 1.0},
               {"100%", Unit::Ratio, 1.0},
               {"512MiB", Unit::Bytes, 512.0 * 1048576},
               {"64MB", Unit::Bytes, 64e6},
               {"1.5KiB", Unit::Bytes, 1536.0},
               {"7B", Unit::Bytes, 7.0},
               {"2GB", Unit::Bytes, 2e9},
               {"4096tok", Unit::Tokens, 4096.0},
               {"12tokens", Unit::Tokens, 12.0}};
  for (const auto& c : cases) {
    const auto parsed = KvBudget::parse(c.text);
    ASSERT_TRUE(parsed.has_value()) << c.text;
    EXPECT_EQ(parsed->unit, c.unit) << c.text;
    EXPECT_DOUBLE_EQ(parsed->value, c.value) << c.text;
  }
}

TEST(KvBudget, RefusesWhatIsNotABudgetAndNamesTheOption) {
  for (const char* text :
       {"",     "x",    "0",    "-0.2", "2",   "1.01", "nan",  "inf",   "infMiB",  "0.2 ",
        " 0.2", "10%%", "101%", "0%",   "5XB", "0tok", "0.5B", "-3tok", "1e300GB", "0x10"}) {
    const auto parsed = KvBudget::parse(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::BadInput);
    EXPECT_NE(parsed.error().message.find("kv_budget"), std::string::npos) << text;
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  }
  EXPECT_NE(KvBudget::parse("4096").error().message.find("unit"), std::string::npos);
}

TEST(KvBudget, TextRoundTrips) {
  for (const char* text : {"0.2", "1", "512MiB", "3KiB", "1000B", "4096tok", "0.05"}) {
    EXPECT_EQ(KvBudget::parse(text)->to_string(), text);
  }
  EXPECT_EQ(KvBudget::parse("20%")->to_string(), "0.2");
}

TEST(Ranker, ParsesEachKindAndRoundTrips) {
  for (const char* text : {"mass", "decay:0.99", "pnorm:2", "key_l2"}) {
    const auto parsed = Ranker::parse(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(parsed->to_string(), text);
  }
  EXPECT_EQ(Ranker::parse("decay:0.5")->kind, Ranker::Kind::Decay);
  EXPECT_EQ(Ranker::parse("decay:0.5")->parameter, 0.5);
}

TEST(Ranker, RefusesBadNamesAndParameters) {
  for (const char* text : {"", "Mass", "decay", "decay:", "decay:0", "decay:1.1", "decay:x",
                           "pnorm:0", "pnorm:-1", "pnorm:nan", "pnorm:2x", "key_l2:1", "mass:1"}) {
    const auto parsed = Ranker::parse(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_NE(parsed.error().message.find("ranker"), std::string::npos);
  }
}

TEST(CacheConfig, DefaultsAreValid) { EXPECT_TRUE(CacheConfig{}.validate().has_value()); }

TEST(CacheConfig, NamesTheOptionThatIsOutOfRange) {
  const auto message = [](auto change) {
    CacheConfig config;
    change(config);
    const Status status = config.validate();
    return status ? std::string("accepted") : status.error().message;
  };
  const auto expect_names = [](const std::string& text, const char* name, const char* value) {
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find(value), std::string::npos) << text;
  };
  expect_names(message([](CacheConfig& c) { c.n_sink = -1; }), "n_sink", "-1");
  expect_names(message([](CacheConfig& c) { c.n_local = -2; }), "n_local", "-2");
  expect_names(message([](CacheConfig& c) { c.window = 0; }), "window", "0");
  expect_names(message([](CacheConfig& c) { c.window = 33; }), "window", "1 to 32");
  expect_names(message([](CacheConfig& c) { c.quant_bits = 5; }), "quant_bits", "5");
  expect_names(message([](CacheConfig& c) { c.quant_share = 1.5; }), "quant_share", "1.5");
  expect_names(
      message([](CacheConfig& c) { c.quant_share = std::numeric_limits<double>::quiet_NaN(); }),
      "quant_share", "nan");
  expect_names(message([](CacheConfig& c) { c.local_share = 0.95; }), "local_share", "0.95");
  expect_names(message([](CacheConfig& c) { c.budget.value = 0.0; }), "kv_budget", "0");
  expect_names(message([](CacheConfig& c) { c.policy.clear(); }), "policy", "''");
  expect_names(message([](CacheConfig& c) { c.ranker = {Ranker::Kind::Decay, 2.0}; }), "decay",
               "2");
}

TEST(ParseLocal, TakesTokensOrAShareOfTheBudget) {
  CacheConfig config;
  ASSERT_TRUE(parse_local("25%", config).has_value());
  EXPECT_DOUBLE_EQ(config.local_share, 0.25);
  ASSERT_TRUE(parse_local("48", config).has_value());
  EXPECT_EQ(config.n_local, 48);
  EXPECT_EQ(config.local_share, 0.0);
  ASSERT_TRUE(parse_local("0%", config).has_value());
  EXPECT_EQ(config.n_local, 0);
  for (const char* text : {"", "x", "-1", "1.5", "95%", "12tok", "nan", "1e9"}) {
    EXPECT_FALSE(parse_local(text, config).has_value()) << text;
  }
}

}  // namespace
}  // namespace qevict
