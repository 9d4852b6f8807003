// How many threads are worth starting: physical cores, within what the process may use.
// Thread safety: free functions.
#pragma once

#include <span>
#include <string>

namespace qevict {

inline constexpr int kMaxThreads = 256;  // Forward's limit

// Physical cores behind the logical CPUs `cpus`: one for each distinct
// `folder`/cpuN/topology/thread_siblings_list. A CPU without that file counts as a core.
int physical_cores(std::span<const int> cpus, const std::string& folder);

// The smallest cpu.max quota of this process's cgroup (version 2) and of those around it, in whole
// CPUs, rounded up; 0: none. `membership` is /proc/self/cgroup, `root` where cgroups are mounted.
int quota_cpus(const std::string& membership, const std::string& root);

// For this process: its affinity mask and its quota, 1 to kMaxThreads.
int default_threads();
// Logical CPUs that this process may run on: more threads than that only wait for each other, and
// ggml's barriers spin while they wait.
int usable_cpus();

}  // namespace qevict
