#include "policies/parameters.h"

#include <gtest/gtest.h>

#include "policies/registry.h"

namespace qevict {
namespace {

enum class Shape : std::uint8_t { Round, Square };

struct Options {
  Shape shape = Shape::Round;
  int size = 4;
  int kernel = 5;
  double alpha = 0.2;
  bool normalize = true;
  void declare(Parameters& p) {
    p.choice("shape", shape, {"round", "square"});
    if (shape == Shape::Square) size = 9;
    p.integer("size", size, 1, 10);
    p.odd("kernel", kernel, 1, 63);
    p.real("alpha", alpha, 0.0, 1.0);
    p.flag("normalize", normalize);
  }
};

CacheConfig given(std::vector<PolicyParameter> parameters) {
  CacheConfig config;
  config.policy_parameters = std::move(parameters);
  return config;
}

TEST(Parameters, TextListsDefaults) {
  EXPECT_EQ(options_text<Options>(), "shape=round|square size=4 kernel=5 alpha=0.2 normalize=true");
}

TEST(Parameters, ReadsWhatIsGivenAndFlavoursChangeDefaults) {
  const auto options =
      read_options<Options>(given({{"alpha", "0.5"}, {"shape", "square"}, {"normalize", "false"}}));
  EXPECT_EQ(options.shape, Shape::Square);
  EXPECT_EQ(options.size, 9);
  EXPECT_EQ(options.alpha, 0.5);
  EXPECT_FALSE(options.normalize);
  EXPECT_EQ(read_options<Options>(given({{"shape", "square"}, {"size", "3"}})).size, 3);
}

TEST(Parameters, RefusesValuesAndKeysAndSaysWhatWorks) {
  const auto message = [](PolicyParameter parameter) {
    const Status status = check_options<Options>(given({std::move(parameter)}));
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message({"size", "11"}), "size is '11' (--policy): use a whole number from 1 to 10");
  EXPECT_EQ(message({"size", "3.5"}), "size is '3.5' (--policy): use a whole number from 1 to 10");
  EXPECT_EQ(message({"kernel", "4"}), "kernel is '4' (--policy): use an odd number");
  EXPECT_EQ(message({"alpha", "nan"}), "alpha is 'nan' (--policy): use a number from 0 to 1");
  EXPECT_EQ(message({"shape", "flat"}), "shape is 'flat' (--policy): use one of round square");
  EXPECT_EQ(message({"normalize", "1"}), "normalize is '1' (--policy): use true or false");
  EXPECT_EQ(message({"colour", "red"}),
            "no parameter 'colour' (--policy): use shape, size, kernel, alpha, normalize");
  EXPECT_EQ(message({"size", "1"}), "");
}

TEST(Parameters, ThePolicyIsLookedUpWithThem) {
  CacheConfig config = given({{"flavour", "factory"}});
  config.policy = "snapkv";
  EXPECT_TRUE(require_policy(config));
  config.policy_parameters = {{"flavour", "vanilla"}};
  EXPECT_FALSE(require_policy(config));
  config.policy = "full";
  const auto refused = require_policy(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "policy full has no parameter 'flavour' (--policy): leave it out");
}

}  // namespace
}  // namespace qevict
