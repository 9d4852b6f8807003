// Files of the evaluation sets: where they are, reading them, fields of their JSON.
//
// The layout below a data folder is that of tools/fetch_data.py, which also names the publishers.
// Errors are BadInput and name file, line and field.
// Thread safety: free functions; a JsonRecord is a view of its file's JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "qevict/result.h"

namespace qevict {

using Json = nlohmann::json;

// $QEVICT_CACHE/data, else $XDG_CACHE_HOME/qevict/data, else ~/.cache/qevict/data.
std::string default_data_dir();

// The first of `names` (relative paths of one file or folder) in the first folder that has one;
// "" when none has. `data_dir` as in TaskOptions.
std::string find_data(std::string_view data_dir, std::initializer_list<std::string_view> names);
// The same with an error that says what was looked for and how to fetch it: `set` is a name of
// tools/fetch_data.py.
Result<std::string> require_data(std::string_view data_dir, std::string_view set,
                                 std::initializer_list<std::string_view> names);

// A file's bytes, those of NAME.gz unpacked (with the program gzip). Errors: cannot be read, a
// folder, empty, larger than 2 GiB.
Result<std::string> read_data(const std::string& path);
// Names of the files in a folder that end in `suffix`, sorted; with the folder's path.
Result<std::vector<std::string>> list_data(const std::string& folder, std::string_view suffix);

// One JSON object and where it stands.
class JsonRecord {
 public:
  JsonRecord(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  const std::string& where() const { return where_; }  // "FILE, line 3"
  const Json& json() const { return *json_; }
  bool has(const char* field) const { return json_->contains(field); }
  Result<std::string> text(const char* field) const;
  Result<std::vector<std::string>> texts(const char* field) const;  // an array of strings
  Result<std::int64_t> integer(const char* field, std::int64_t least, std::int64_t most) const;
  Result<bool> flag(const char* field) const;
  // An array of objects.
  Result<std::vector<JsonRecord>> records(const char* field) const;
  Result<JsonRecord> record(const char* field) const;
  // `field "answers": MESSAGE (where)`.
  std::unexpected<Error> error(const char* field, std::string_view message) const;

 private:
  Result<const Json*> get(const char* field) const;

  const Json* json_;
  std::string where_;
};

// Whole files; nothing in them may hold a NUL.
Result<Json> read_json(const std::string& path);

// Calls `use` with every line of a JSON Lines file, each an object; blank lines are left out. Stops
// at the first error.
Status read_json_lines(const std::string& path,
                       const std::function<Status(const JsonRecord&)>& use);

}  // namespace qevict
