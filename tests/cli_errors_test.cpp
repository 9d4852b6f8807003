// Everything that a user can get wrong: one line on stderr that says what, where and what to do,
// the right exit code, and nothing on stdout.
#include "cli_runner.h"

namespace qevict {
namespace {

class CliErrors : public CliTest {
 protected:
  // Runs the program, checks the form of its error and returns the line.
  std::string fails(int exit_code, const std::vector<std::string>& arguments,
                    const CliSetup& setup = {}) {
    const CliResult r = cli(arguments, setup);
    std::string command;
    for (const std::string& a : arguments) command += a.substr(0, 60) + " ";
    EXPECT_EQ(r.exit_code, exit_code) << command << "\n" << r.err;
    EXPECT_EQ(r.out, "") << command;
    EXPECT_TRUE(r.err.starts_with("qevict: error: ")) << command << "\n" << r.err;
    EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << command << "\n" << r.err;
    // WHAT (WHERE): WHAT TO DO
    const std::size_t where = r.err.find(" (");
    const std::size_t advice = r.err.find("): ");
    EXPECT_TRUE(where != std::string::npos && advice != std::string::npos && where < advice)
        << command << "\n"
        << r.err;
    return r.err;
  }
  std::string run_fails(int exit_code, std::vector<std::string> more, const CliSetup& setup = {}) {
    more.insert(more.begin(), {"run", "-m", model()});
    return fails(exit_code, more, setup);
  }
  void expect_names(const std::string& line, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(line.find(part), std::string::npos) << line;
  }
};

TEST_F(CliErrors, CommandLine) {
  fails(2, {});
  expect_names(fails(2, {"walk"}), {"'walk'", "run", "chat", "bench"});
  expect_names(run_fails(2, {"-p", "a", "--no-such-option"}),
               {"--no-such-option", "qevict run --help"});
  expect_names(run_fails(2, {"-p", "a", "-n", "many"}), {"many"});
  expect_names(run_fails(2, {"-p", "a", "-n", "0"}), {"-n"});
  // Refused before the model, which is not there, is looked for.
  for (const char* n : {"-3", "0", "257"}) {
    expect_names(fails(2, {"run", "-m", path("gone.gguf"), "-p", "a", "-t", n}),
                 {"--threads", n, "256"});
  }
  expect_names(run_fails(2, {"-p", "a", "-b", "8193"}), {"--batch-size", "8192"});
  expect_names(run_fails(2, {"-p", "a", "stray"}), {"stray"});
  expect_names(run_fails(2, {"-p", "a", "--top-p", "1.5"}), {"--top-p"});
  run_fails(2, {"-p"});
  expect_names(run_fails(2, {"-p", "a", "--attention", "fast"}),
               {"--attention", "fused", "materialised"});
  run_fails(2, {"-p", "a", "--stop", ""});
  expect_names(run_fails(2, {"-p", "a"}, {.environment = {"QEVICT_N_PREDICT=x"}}), {"x"});
}

TEST_F(CliErrors, WhatIsNotThereYetSaysSo) {
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--save-cache", path("c")}, {"--load-cache", path("c")}}) {
    std::vector<std::string> all = {"-p", "a"};
    all.insert(all.end(), option.begin(), option.end());
    expect_names(run_fails(2, all), {option[0], "not available in this version"});
  }
  expect_names(fails(2, {"bench", "kernels", "--isa", "mmx"}), {"--isa", "mmx", "reference"});
  expect_names(fails(2, {"bench", "kernels", "--formats", "int1"}), {"--formats", "int2"});
  expect_names(fails(2, {"bench", "kernels", "--hot", "--cold"}), {"--hot", "--cold"});
  expect_names(fails(2, {"bench", "kernels", "--head-dim", "30"}), {"--head-dim"});
}

TEST_F(CliErrors, Prompt) {
  expect_names(run_fails(2, {}), {"no prompt", "-p"});
  expect_names(run_fails(2, {"-p", ""}), {"empty"});
  expect_names(run_fails(2, {"-f", write("empty.txt", "")}), {"empty", "empty.txt"});
  expect_names(run_fails(2, {"-"}), {"empty", "standard input"});
  expect_names(run_fails(2, {"-p", "a", "-"}), {"several prompts"});
  expect_names(run_fails(2, {"-f", path("nowhere.txt")}), {"nowhere.txt", "No such file"});
  expect_names(run_fails(2, {"-f", path("")}), {"directory"});
  expect_names(run_fails(2, {"-p", "caf\xe9 au lait"}), {"UTF-8"});
  expect_names(run_fails(2, {"-"}, {.input = "ok \xf0\x9f\x98"}), {"UTF-8", "standard input"});
  expect_names(run_fails(2, {"-p", "a", "--system", "b"}), {"--chat"});
  expect_names(run_fails(2, {"-p", long_text(100), "-c", "64"}), {"64", "--ctx-size"});
  expect_names(run_fails(2, {"-p", "a", "-c", "1000000"}), {"4096"});
}

TEST_F(CliErrors, TokenLists) {
  const auto prompt = [&](const std::string& text) {
    return run_fails(2, {"--prompt-tokens", write("ids.json", text)});
  };
  expect_names(prompt("[1, 2"), {"ids.json", "JSON"});
  expect_names(prompt("{\"ids\": [1]}"), {"ids.json", "array"});
  expect_names(prompt("[]"), {"ids.json"});
  expect_names(prompt("[1, 2, \"x\"]"), {"ids.json", "index 2"});
  expect_names(prompt("[1, 2.5]"), {"ids.json", "index 1"});
  expect_names(prompt("[1, -1]"), {"ids.json", "index 1", "-1"});
  expect_names(prompt("[1, 2, 3, 99999]"), {"ids.json", "index 3", "99999", "vocabulary"});
  expect_names(prompt("[1, 18446744073709551615]"), {"ids.json", "index 1"});
  expect_names(prompt("[1, 2]\xff"), {"ids.json"});
  expect_names(run_fails(2, {"-p", "a", "--forced-tokens", write("forced.json", "[5, 70000]")}),
               {"forced.json", "index 1", "70000"});
  expect_names(run_fails(2, {"--prompt-tokens", path("gone.json")}), {"gone.json"});
  run_fails(2, {"--prompt-tokens", write("deep.json", std::string(100000, '['))});
}

TEST_F(CliErrors, Cache) {
  for (const char* budget : {"3", "-1", "0", "nan", "much", "20%%", "12parsecs", "1.5"}) {
    expect_names(run_fails(2, {"-p", "a", "--kv-budget", budget}), {"kv_budget"});
  }
  // Sinks, local zone, a window and what waits for one are 26 tokens of 512 bytes.
  expect_names(run_fails(2, {"-p", long_text(60), "--kv-budget", "64B"}), {"kv_budget", "13312B"});
  expect_names(run_fails(2, {"-p", long_text(60), "--kv-budget", "10tok"}), {"kv_budget", "26tok"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "magic"}), {"'magic'", "qevict", "full"});
  // Options that a policy does not know are not left unused; without one they mean qevict.
  expect_names(run_fails(2, {"-p", "a", "--policy", "qevict+", "--quant-bits", "4"}),
               {"qevict+", "--quant-bits"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "snapkv", "--sinks", "4"}),
               {"snapkv", "--sinks"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "qevict+", "--window", "7"}), {"window", "7"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "qevict:colour=red"}), {"'colour'", "window"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "qevict:window"}), {"window=VALUE"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "qevict:window=wide"}), {"'wide'", "window"});
  expect_names(run_fails(2, {"-p", "a", "--policy", "full:window=8"}), {"no parameters"});
  expect_names(run_fails(2, {"-p", "a", "--window", "0"}), {"window"});
  expect_names(run_fails(2, {"-p", "a", "--window", "33"}), {"window", "33", "from 1 to 32"});
  expect_names(run_fails(2, {"-p", "a", "--quant-bits", "5"}), {"quant_bits", "2, 3, 4 or 8"});
  expect_names(run_fails(2, {"-p", "a", "--quant-share", "1.5"}), {"quant_share"});
  expect_names(run_fails(2, {"-p", "a", "--ranker", "luck"}), {"ranker", "mass"});
  expect_names(run_fails(2, {"-p", "a", "--local", "-4"}), {"local"});
  expect_names(run_fails(2, {"-p", "a", "--local-rule", "round"}), {"floor or ceil"});
}

TEST_F(CliErrors, OutputFiles) {
  const std::string file = path("no/such/folder/trace.jsonl");
  expect_names(run_fails(1, {"-p", "a", "--trace", file}), {file});
  expect_names(run_fails(1, {"-p", "a", "--trace", path("")}), {path("")});
  expect_names(run_fails(2, {"-p", "a", "--trace-scores"}), {"--trace"});
  // A run that fails leaves no trace, not even a partial one.
  run_fails(2, {"-p", long_text(100), "-c", "64", "--trace", path("t.jsonl")});
  EXPECT_FALSE(std::filesystem::exists(path("t.jsonl")));
  EXPECT_FALSE(std::filesystem::exists(path("t.jsonl.partial")));
}

TEST_F(CliErrors, ModelFiles) {
  const auto refused = [&](const std::string& file) {
    const std::string line = fails(2, {"run", "-m", file, "-p", "the"});
    EXPECT_NE(line.find(file.substr(file.rfind('/') + 1)), std::string::npos) << line;
    return line;
  };
  refused(path("gone.gguf"));
  refused(write("empty.gguf", ""));
  refused(write("text.gguf", "this is not a model"));
  const std::string whole = read(model());
  for (const double share : {0.001, 0.01, 0.3, 0.9, 0.9999}) {
    refused(
        write("truncated.gguf", whole.substr(0, static_cast<std::size_t>(share * whole.size()))));
  }
  // Counts of tensors and keys that no file can hold; a version of the future.
  for (const int offset : {8, 16}) {
    std::string hostile = whole;
    hostile.replace(offset, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
    refused(write("hostile.gguf", hostile));
  }
  std::string future = whole;
  future[4] = 99;
  refused(write("future.gguf", future));
  TinyModel strange;
  strange.texts["general.architecture"] = "gpt9";
  expect_names(refused(make_model(strange, "strange.gguf")), {"gpt9"});
  TinyModel holed;
  holed.without = {"blk.1.attn_k.weight"};
  expect_names(refused(make_model(holed, "holed.gguf")), {"blk.1.attn_k.weight"});
  fails(2, {"info", path("gone.gguf")});
  fails(2, {"bench", "decode", "-m", path("gone.gguf")});
  fails(2, {"chat", "-m", path("gone.gguf")});
}

TEST_F(CliErrors, PullNamesTheKnownModels) {
  expect_names(fails(2, {"pull", "no-such-model"}), {"no-such-model"});
  expect_names(fails(2, {"run", "-m", "qwen2.5-coder-0.5b", "-p", "a"},
                     {.environment = {"QEVICT_CACHE=" + path("cache")}}),
               {"qevict pull"});
}

}  // namespace
}  // namespace qevict
