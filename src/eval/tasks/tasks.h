// What the registry makes tasks with; each file of this folder defines one function or a few.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "eval/task.h"

namespace qevict {

// RULER (arXiv 2404.06654). Its word lists are read from the package wonderwords' files, its
// essays, SQuAD and HotpotQA from theirs.
std::unique_ptr<Task> make_niah(const std::string& variant);  // "single_1" ... "multiquery"
std::unique_ptr<Task> make_variable_tracking();
std::unique_ptr<Task> make_common_words();
std::unique_ptr<Task> make_frequent_words();
std::unique_ptr<Task> make_squad();
std::unique_ptr<Task> make_hotpotqa();

// LongBench (arXiv 2308.14508): "narrativeqa", ... ; longbench_available: is its file there?
std::unique_ptr<Task> make_longbench(const std::string& name);
bool longbench_available(const std::string& name, std::string_view data_dir);

enum class Gsm8kForm { ZeroShotChat, EightShot, EightShotStrict };
std::unique_ptr<Task> make_gsm8k(Gsm8kForm form);

std::unique_ptr<Task> make_needle_grid();
std::unique_ptr<Task> make_kv_retrieval(int n_keys);  // 0: generated, as many as fit
std::unique_ptr<Task> make_longchat_lines();
std::unique_ptr<Task> make_passkey();
std::unique_ptr<Task> make_file_task(const std::string& path);

}  // namespace qevict
