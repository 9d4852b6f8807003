// How one prefill call is cut into key panels, and how its scratch is divided (internal to
// kernels/).
//
// A panel is at most kPanelVectors logical vectors of 16 keys. For windows a vector is one
// in-window offset j of the 16 windows of a group, so that a window's mass is a vertical add over
// the panel's vectors; sinks are taken 16 rows a vector. Panels depend only on absolute key
// positions, never on the query tile: a query row gets the same bits whichever tile it is part of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/panel_products.h"

namespace qevict {

inline constexpr int kPanelVectors = 8;
inline constexpr int kPanelTokens = kPanelVectors * kLanes;
// Query rows are padded to whole blocks of at most this many rows.
inline constexpr int kMaxRowBlock = 16;
// Slack for the last column block of V and the last vector block of K.
inline constexpr int kMaxBlockFloats = 64;

enum class PanelKind : std::uint8_t { Full, Quantized, Sinks, Region };

struct PrefillPanel {
  PanelKind kind = PanelKind::Full;
  int index = 0;     // running number of the mass panels (undefined for sinks)
  int group = 0;     // first group of 16 windows, counted inside its kind
  int n_groups = 1;  // groups in this panel
  int j0 = 0;        // first in-window offset
  int nj = 0;        // offsets, each one vector a group
  int n_vectors = 0;
  int lanes = 0;                        // lanes that any vector uses; the others are never visible
  int lane_stride = 1;                  // rows from one lane to the next (rows only)
  std::int32_t row[kPanelVectors]{};    // row of lane 0 (rows only)
  std::int32_t valid[kPanelVectors]{};  // lanes of a prefix vector
  bool from_rows() const { return kind == PanelKind::Sinks || kind == PanelKind::Region; }
  int min_row() const { return row[0]; }
  // Every lane of every prefix vector holds a key.
  bool all_valid() const {
    for (int v = 0; v < n_vectors; ++v) {
      if (valid[v] < kLanes) return false;
    }
    return true;
  }
  int max_row() const { return row[n_vectors - 1] + (kLanes - 1) * lane_stride; }
};

// The shape of a call, and an iterator over its panels.
class PrefillPlan {
 public:
  explicit PrefillPlan(const PrefillParams& p);

  // Fills the next panel; false at the end.
  bool next(PrefillPanel* panel);
  void rewind();

  int omega() const { return omega_; }
  int groups_per_panel() const { return groups_per_panel_; }
  // Panels that one group is cut into, when a group is larger than a panel.
  int splits() const { return splits_; }
  int visible_rows() const { return visible_rows_; }
  int region_windows() const { return region_windows_; }
  int region_groups() const { return (region_windows_ + kLanes - 1) / kLanes; }
  int sink_rows() const { return sink_rows_; }

 private:
  void fill_windows(PrefillPanel* panel, int n_groups, const GroupRef* groups, int row0);

  const GroupRef* full_;
  const GroupRef* quantized_;
  int omega_;
  int groups_per_panel_;
  int splits_;
  int nj_;  // offsets a panel, where a group is split
  int n_full_;
  int n_quantized_;
  int first_region_row_;
  int visible_rows_;    // rows that the tile's last token sees; no row beyond is read
  int sink_rows_;       // of these
  int region_windows_;  // of these, the last one possibly partial
  int stage_ = 0;
  int group_ = 0;
  int split_ = 0;
  int index_ = 0;
};

// Parts of PrefillParams::scratch, each 64-byte aligned.
struct PrefillScratch {
  float* q;          // [row blocks][D][rows a block], scaled by scale * log2(e)
  float* o;          // [rows][d_pad]
  float* l;          // [rows][16] partial sums
  float* m;          // [rows] reference maxima
  float* k;          // key panel
  float* v;          // value panel
  float* s;          // [rows of a chunk][kPanelTokens]
  float* turn;       // [Omega][2][D/2]: cos, sin of j * inv_freq
  float* window;     // [mass panels * groups a panel][rows][16] unnormalised window sums
  float* m_window;   // [mass panels][rows] the maximum they refer to
  fp16_t* zero_row;  // [D] zeros
  ProductScratch products;
  int rows;   // padded
  int d_pad;  // D rounded up to 16
};
inline constexpr int kChunkRows = 48;

// Divides `base` (null: only measures) for a tile of n_tokens; returns the bytes used.
std::size_t divide_prefill_scratch(void* base, const Geometry& g, int n_tokens, int n_full_groups,
                                   int n_quantized_groups, int n_rows, PrefillScratch* out);

}  // namespace qevict
