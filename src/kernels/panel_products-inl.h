// PanelProducts on a type Tiles; included once for each of them (panel_products.cpp), inside a
// namespace of its own. Tiles has eight registers of 16 rows x 64 bytes:
//   load<T>(pointer, stride in bytes), store<T>, zero<T>, dot<C, A, B>: C += A.B (bf16 pairs).

// Rounded to nearest even; finite in, finite out but for values next to the largest.
inline std::uint32_t round_bf16(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
}

inline float widen_bf16(std::uint32_t x) {
  x <<= 16U;
  float f = 0.0F;
  std::memcpy(&f, &x, sizeof(f));
  return f;
}

struct Split {
  std::uint32_t hi, lo;
};
inline Split split_bf16(float x) {
  const std::uint32_t hi = round_bf16(x);
  return {hi, round_bf16(x - widen_bf16(hi))};
}

inline void store_pair(const float a, const float b, std::uint32_t* hi, std::uint32_t* lo) {
  const Split x = split_bf16(a);
  const Split y = split_bf16(b);
  *hi = x.hi | y.hi << 16U;
  *lo = x.lo | y.lo << 16U;
}

// One tile of B: column n of pair row i holds a[n] and b[n] of the two rows that the pair joins.
// Columns come in runs of kRun values; next(i, n) gives the address of a run in row i.
template <int kRun, class Address>
inline void pack_tile(int n_rows, int n_columns, const Address& address, bf16_t* hi, bf16_t* lo) {
  alignas(64) static constexpr float kZeros[kTileRows] = {};
  for (int i = 0; i < kTileDepth; i += 2) {
    auto* hi_row = reinterpret_cast<std::uint32_t*>(hi) + i / 2 * kTileRows;
    auto* lo_row = reinterpret_cast<std::uint32_t*>(lo) + i / 2 * kTileRows;
    for (int n = 0; n < kTileRows; n += kRun) {
      const float* a = i < n_rows && n < n_columns ? address(i, n) : kZeros;
      const float* b = i + 1 < n_rows && n < n_columns ? address(i + 1, n) : kZeros;
      for (int u = 0; u < kRun; ++u) store_pair(a[u], b[u], hi_row + n + u, lo_row + n + u);
    }
  }
}

inline constexpr std::ptrdiff_t kTileValues = kTileRows * kTileDepth;
inline int depth_tiles(int n) { return (n + kTileDepth - 1) / kTileDepth; }

void pack_query(const ProductScratch& s, int row, const float* q, float scale, int dim) noexcept {
  const int pad = depth_tiles(dim) * kTileDepth;
  bf16_t* hi = s.q[0] + static_cast<std::ptrdiff_t>(row) * pad;
  bf16_t* lo = s.q[1] + static_cast<std::ptrdiff_t>(row) * pad;
  for (int c = 0; c < pad; ++c) {
    const Split x = split_bf16(q != nullptr && c < dim ? q[c] * scale : 0.0F);
    hi[c] = static_cast<bf16_t>(x.hi);
    lo[c] = static_cast<bf16_t>(x.lo);
  }
}

template <int kRun>
inline void pack_keys(const ProductScratch& s, const PackedPanel& panel) {
  const int depth = depth_tiles(panel.dim);
  for (int v = 0; v < panel.n_vectors; ++v) {
    for (int t = 0; t < depth; ++t) {
      const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(v) * depth + t) * kTileValues;
      const auto address = [&](int i, int n) {
        const int token = v * kLanes + n;
        const int c = t * kTileDepth + i;
        return panel.k +
               (static_cast<std::ptrdiff_t>(token / panel.k_block) * panel.dim + c) *
                   panel.k_block +
               token % panel.k_block;
      };
      pack_tile<kRun>(panel.dim - t * kTileDepth, kTileRows, address, s.k[0] + at, s.k[1] + at);
    }
  }
}

// Lanes that hold nothing are zeros here: their probabilities are 0, but 0 * NaN is not.
template <int kRun>
inline void pack_values(const ProductScratch& s, const PackedPanel& panel) {
  const int tiles = (panel.n_vectors + 1) / 2;
  const int blocks = (panel.dim + kTileRows - 1) / kTileRows;
  alignas(64) static constexpr float kZeros[kTileRows] = {};
  for (int b = 0; b < blocks; ++b) {
    for (int t = 0; t < tiles; ++t) {
      const std::ptrdiff_t at =
          (static_cast<std::ptrdiff_t>(b) * (kPanelVectors / 2) + t) * kTileValues;
      const auto address = [&](int i, int n) {
        const int token = t * kTileDepth + i;
        const int c = b * kTileRows + n;
        if (token % kLanes >= panel.lanes) return kZeros + n;
        return panel.v +
               (static_cast<std::ptrdiff_t>(c / panel.v_width) * kPanelTokens + token) *
                   panel.v_width +
               c % panel.v_width;
      };
      pack_tile<kRun>(panel.n_vectors * kLanes - t * kTileDepth, panel.dim - b * kTileRows, address,
                      s.v[0] + at, s.v[1] + at);
    }
  }
}

void pack_panel(const ProductScratch& s, const PackedPanel& panel) noexcept {
  if (panel.k_block % kTileRows == 0) {
    pack_keys<kTileRows>(s, panel);
  } else {
    pack_keys<4>(s, panel);
  }
  if (panel.v_width % kTileRows == 0 && panel.dim % kTileRows == 0) {
    pack_values<kTileRows>(s, panel);
  } else {
    pack_values<4>(s, panel);
  }
}

// A: 16 rows, `a_stride` values apart, depth * 32 values each. B: tiles, `b_block` values from one
// block of 16 columns to the next and kTileValues from one step in depth to the next.
struct Operands {
  const bf16_t* a[2];
  std::ptrdiff_t a_stride;
  const bf16_t* b[2];
  std::ptrdiff_t b_block;
  int depth;
};

// c [16][kBlocks * 16] (+)= A.B. Accumulators are registers 0 .. 3, A is in 4 and 5, B alternates
// between 6 and 7; an accumulator is used again only after the others.
template <class Tiles, int kBlocks, bool kAdd>
inline void multiply(Tiles& tiles, const Operands& x, float* c, std::ptrdiff_t c_stride) {
  const std::ptrdiff_t c_bytes = c_stride * static_cast<std::ptrdiff_t>(sizeof(float));
  const std::ptrdiff_t a_bytes = x.a_stride * static_cast<std::ptrdiff_t>(sizeof(bf16_t));
  constexpr auto kSequence = std::make_integer_sequence<int, kBlocks>();
  const auto each = [&]<int... kBlock>(std::integer_sequence<int, kBlock...>, const auto& f) {
    (f.template operator()<kBlock>(), ...);
  };
  each(kSequence, [&]<int kBlock>() {
    if constexpr (kAdd) {
      tiles.template load<kBlock>(c + kBlock * kTileRows, c_bytes);
    } else {
      tiles.template zero<kBlock>();
    }
  });
  for (int t = 0; t < x.depth; ++t) {
    tiles.template load<4>(x.a[0] + t * kTileDepth, a_bytes);
    tiles.template load<5>(x.a[1] + t * kTileDepth, a_bytes);
    const bf16_t* hi = x.b[0] + t * kTileValues;
    const bf16_t* lo = x.b[1] + t * kTileValues;
    const auto pass = [&]<int kA>(const bf16_t* b) {
      each(kSequence, [&]<int kBlock>() {
        tiles.template load<6 + kBlock % 2>(b + kBlock * x.b_block, 64);
        tiles.template dot<kBlock, kA, 6 + kBlock % 2>();
      });
    };
    pass.template operator()<4>(hi);
    pass.template operator()<5>(hi);
    pass.template operator()<4>(lo);
  }
  each(kSequence,
       [&]<int kBlock>() { tiles.template store<kBlock>(c + kBlock * kTileRows, c_bytes); });
}

template <class Tiles, bool kAdd>
inline void multiply_blocks(Tiles& tiles, Operands x, int n_blocks, float* c,
                            std::ptrdiff_t c_stride) {
  while (n_blocks > 0) {
    const int n = n_blocks < 4 ? n_blocks : 4;
    if (n == 4) {
      multiply<Tiles, 4, kAdd>(tiles, x, c, c_stride);
    } else if (n == 3) {
      multiply<Tiles, 3, kAdd>(tiles, x, c, c_stride);
    } else if (n == 2) {
      multiply<Tiles, 2, kAdd>(tiles, x, c, c_stride);
    } else {
      multiply<Tiles, 1, kAdd>(tiles, x, c, c_stride);
    }
    for (int part = 0; part < 2; ++part) x.b[part] += n * x.b_block;
    c += static_cast<std::ptrdiff_t>(n) * kTileRows;
    n_blocks -= n;
  }
}

void score(const ProductScratch& s, int first_row, int n_rows, int n_vectors, int dim,
           float* out) noexcept {
  Tiles tiles;
  const int depth = depth_tiles(dim);
  const std::ptrdiff_t pad = std::ptrdiff_t{depth} * kTileDepth;
  for (int row = 0; row < n_rows; row += kTileRows) {
    const std::ptrdiff_t at = (first_row + row) * pad;
    const Operands x = {
        {s.q[0] + at, s.q[1] + at}, pad, {s.k[0], s.k[1]}, depth * kTileValues, depth};
    multiply_blocks<Tiles, false>(
        tiles, x, n_vectors, out + static_cast<std::ptrdiff_t>(row) * kPanelTokens, kPanelTokens);
  }
}

void accumulate(const ProductScratch& s, int n_rows, int n_vectors, int lanes, int dim,
                const float* p, float* o, int d_pad) noexcept {
  Tiles tiles;
  const int depth = (n_vectors + 1) / 2;
  const int n_tokens = n_vectors * kLanes;
  for (int row = 0; row < n_rows; row += kTileRows) {
    for (int r = row; r < row + kTileRows; ++r) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * kPanelTokens;
      for (int t = 0; t < depth * kTileDepth; ++t) {
        const bool used = t < n_tokens && t % kLanes < lanes;
        const Split x = split_bf16(used ? p[at + t] : 0.0F);
        s.p[0][at + t] = static_cast<bf16_t>(x.hi);
        s.p[1][at + t] = static_cast<bf16_t>(x.lo);
      }
    }
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * kPanelTokens;
    const Operands x = {{s.p[0] + at, s.p[1] + at},
                        kPanelTokens,
                        {s.v[0], s.v[1]},
                        (kPanelVectors / 2) * kTileValues,
                        depth};
    multiply_blocks<Tiles, true>(tiles, x, (dim + kTileRows - 1) / kTileRows,
                                 o + static_cast<std::ptrdiff_t>(row) * d_pad, d_pad);
  }
}
