// The diagnostics of one run: a policy's events held against the full cache's attention on the same
// tokens.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "eval/diagnostics.h"
#include "eval/diagnostics_record.h"
#include "eval/diagnostics_values.h"

namespace qevict {

// Of one query head, by event.
struct HeadDiagnostics {
  std::vector<double> fmm, qsa;
};

inline constexpr std::array<int, 4> kRevivalLengths = {1, 2, 3, 4};

struct PolicyDiagnostics {
  std::vector<int> event_steps;             // those before the last step
  std::vector<DiagnosticValues> per_event;  // [events], over the layers
  std::vector<DiagnosticValues> per_layer;  // [layers], over the events
  DiagnosticValues mean;                    // over per_event: events and layers weigh the same
  std::vector<HeadDiagnostics> per_head;    // [n_layers * n_heads]
  // By kRevivalLengths: of the policy's Full sets, and of the sets that the full cache's attention
  // so far would put there.
  std::array<Revivals, 4> revivals, oracle_revivals;

  double worst_head_qsa() const;  // the smallest of the heads' means over the events
};

// read_quantized false: as if the Quantized tier had been out of reach.
PolicyDiagnostics diagnose(const AttentionRecord& full, const PolicyRecord& policy,
                           bool read_quantized = true);

}  // namespace qevict
