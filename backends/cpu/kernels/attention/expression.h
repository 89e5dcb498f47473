// Score and mask functions on a score tile Aᵀ[keys × queries]. The tile is computed in stretches of whole
// rows: each block function of the plan computes one op for a stretch, which stays in the L1 cache. For the
// backward, the tile also gets the slopes ∂A/∂score and ∂A/∂element of captured tensors, and the sums of
// their gradients.
#pragma once

#include "backends/cpu/expression.h"
#include "backends/cpu/kernels/attention/query_tile.h"

namespace tg::cpu::TG_ISA {

inline const ExpressionPlan& expression_of(const AttentionCall& x) {
  return *static_cast<const ExpressionPlan*>(x.plan);
}

// The part of a captured tensor whose gradient one block of keys can reach. If the index of an axis is b, h
// or t, the axis is restricted to the block's indices.
struct CapturedSlice {
  CapturedSlice() = default;
  CapturedSlice(const AttentionCall& x, int tensor, i64 keys) {
    const Shape& shape = x.captured[tensor].layout.shape;
    rank = shape.size();
    i64 limit[3] = {1, x.Hk == 0 ? 0 : x.H / x.Hk, keys};
    for (int a = 0; a < rank; ++a) by[a] = Value::none, extent[a] = shape[a];
    bool first = true;
    for (const AttentionExpression::Capture& c : x.expression->captures) {
      if (c.tensor != tensor) continue;
      for (int a = 0; a < rank; ++a) {
        const auto kind = c.index[static_cast<std::size_t>(a)].kind;
        by[a] = first || by[a] == kind ? kind : Value::none;
      }
      first = false;
    }
    for (int a = 0; a < rank; ++a) {
      const int one = by[a] == Value::b ? 0 : by[a] == Value::h ? 1 : by[a] == Value::t && !x.cu_q ? 2 : -1;
      if (one < 0) by[a] = Value::none;
      if (one >= 0 && limit[one] < extent[a]) extent[a] = limit[one];
    }
    for (int a = rank; a-- > 0;) stride[a] = elements, elements *= extent[a];
  }
  // The first index of an axis, for the keys from key0 of batch entry b and the query heads from h.
  i64 start(int axis, i64 b, i64 h, i64 key0) const {
    return by[axis] == Value::b ? b : by[axis] == Value::h ? h : by[axis] == Value::t ? key0 : 0;
  }

  using Value = AttentionExpression::Value;
  int rank = 0;
  Value::Kind by[max_rank];
  i64 extent[max_rank], stride[max_rank], elements = 1;
};

template <class C>
struct ExpressionTile {
  static constexpr int captures = AttentionExpression::max_captures,
                       tensors = AttentionExpression::max_captured;

  // key_block: keys of a block whose gradients are summed; 0 in a forward
  void carve(Carver& carver, const AttentionCall& x, i64 keys, i64 columns, i64 key_block) {
    if (!x.plan) return;
    const ExpressionPlan& p = expression_of(x);
    blocks = carver.take<C>(i64{p.slots} * ExpressionPlan::block);
    offsets = carver.take<std::int32_t>(ExpressionPlan::block);
    if (key_block == 0) return;
    for (int c = 0; c < static_cast<int>(x.expression->captures.size()); ++c) {
      element[c] = p.capture[c].sums ? carver.take<std::int32_t>(keys * columns) : nullptr;
      slope[c] = p.capture[c].slope < 0 ? nullptr : carver.take<C>(keys * columns);
    }
    for (int k = 0; k < x.expression->captured; ++k) {
      sum[k] = nullptr;
      if (!(x.needs_z_captured >> k & 1)) continue;
      slice[k] = CapturedSlice(x, k, key_block);
      sum[k] = carver.take<double>(slice[k].elements);
    }
  }
  C* slot(int s) const { return blocks + i64{s} * ExpressionPlan::block; }

  Worker* worker = nullptr;  // reports indices out of range
  bool sums = false;         // whether elements and slopes are stored for the sums of gradients
  C* blocks;                 // [slots × block]
  std::int32_t* offsets;     // [block]: offsets of captured elements
  // For each capture that needs a gradient: the element's number in the slice, for each value of its class.
  // If the slope is not constant, ∂A/∂element of each pair [keys × columns].
  std::int32_t* element[captures] = {};
  C* slope[captures] = {};
  CapturedSlice slice[tensors];
  double* sum[tensors] = {};                    // gradient of the slice, or null
  i64 first_b = 0, first_h = 0, first_key = 0;  // of the slice
};

// Values from … to − 1.
struct ValueRange {
  i64 from, to;
};

// Whether values of a tile depend on the class of ExpressionPlan only: its columns are consecutive queries of
// one head and one sequence.
template <class C>
bool is_regular(const AttentionCall& x, const QueryTile<C>& t) {
  return t.h1 - t.h0 == 1 && !x.cu_q;
}

// Computes the functions on one score tile [keys × width]. Each column has a query. If the keys are columns,
// as in decoding, the tile has one row, and each column has its own key.
template <class C>
class ExpressionRun {
 public:
  using V = vector_t<C>;
  using Plan = ExpressionPlan;
  static constexpr int W = Tile<C>::width;

  // The keys from key0 of a query tile.
  ExpressionRun(const AttentionCall& x, const QueryTile<C>& t, const ExpressionTile<C>& tile, i64 key0,
                i64 keys)
      : ExpressionRun(x, tile, t.width, t.count, key0, keys, key0 < t.all_from || key0 + keys > t.all_to) {
    for (i64 c = 0; c < t.width; ++c) {
      const i64 own = c < t.count ? c : t.count - 1;  // columns beyond the tile repeat the last one
      set_column(c, t.b, t.batch_head[own] - t.b * x.H, t.query[own]);
      low_[c] = static_cast<C>(t.first[own] - key0), high_[c] = static_cast<C>(t.last[own] - key0);
    }
    is_regular_ = is_regular(x, t);
    run_classes();
  }
  // The keys from key0 of query `query` of head h: one row of scores. Keys from … to − 1 are visible.
  ExpressionRun(const AttentionCall& x, const ExpressionTile<C>& tile, i64 b, i64 h, i64 query, i64 key0,
                i64 keys, i64 from, i64 to)
      : ExpressionRun(x, tile, keys, keys, key0, 1, key0 < from || key0 + keys > to) {
    for (i64 c = 0; c < keys; ++c) {
      set_column(c, b, h, query);
      first_key_[c] -= static_cast<C>(c);
      low_[c] = key0 + c >= from && key0 + c < to ? C{0} : C{1}, high_[c] = 1;
    }
    run_classes();
  }

  // a: scores, which become A. slope, if not null: gets ∂A/∂score, times its present contents if
  // `multiplies`.
  void apply(C* a, C* slope, bool multiplies) {
    const bool in_place = writes_in_place(slope);
    for (i64 row = 0; row < keys_; row += rows_) {
      const i64 rows = at_most(rows_, keys_ - row), at = row * width_;
      set_keys(row, rows);
      if (!is_regular_) run(Plan::key, Plan::difference, a + at, rows * width_);
      for (int k = 0; k < p_.spreads; ++k) spread(p_.spread[k], row, rows);
      run(Plan::pair, Plan::pair, a + at, rows * width_, in_place ? a + at : nullptr);
      for (int c = 0; c < static_cast<int>(x_.expression->captures.size()); ++c)
        if (outside_[c]) report(c, a + at, row, rows);
      if (tile_.sums) keep_pairs(a + at, row, rows);
      if (!in_place) finish(a + at, slope ? slope + at : nullptr, multiplies, row, rows);
    }
  }

 private:
  ExpressionRun(const AttentionCall& x, const ExpressionTile<C>& tile, i64 width, i64 count, i64 key0,
                i64 keys, bool is_partial)
      : x_(x),
        tile_(tile),
        p_(expression_of(x)),
        width_(width),
        count_(count),
        key0_(key0),
        keys_(keys),
        rows_(at_most(keys, Plan::block / width)),
        is_partial_(is_partial) {}

  // Whether the last step may write A over the score. Nothing reads the score after it, unless the score
  // itself is an index, which report() reads.
  bool writes_in_place(const C* slope) const {
    const int last = p_.first[Plan::pair + 1] - 1;
    for (int c = 0; c < static_cast<int>(x_.expression->captures.size()); ++c)
      for (int a = 0; a < p_.capture[c].rank; ++a)
        if (p_.capture[c].index[a] == Plan::score) return false;
    return last >= p_.first[Plan::pair] && p_.step[last].run && p_.step[last].slot == p_.result &&
           p_.mask < 0 && !slope && !tile_.sums;
  }

  const C* source(int slot, const C* score) const {
    return slot == ExpressionPlan::score ? score : tile_.slot(slot);
  }

  void set_column(i64 c, i64 b, i64 h, i64 query) {
    const QuerySequence s = sequence_of_query(x_, static_cast<int>(b), static_cast<int>(query));
    first_key_[c] = static_cast<C>(s.first_key);
    tile_.slot(ExpressionPlan::b)[c] = static_cast<C>(b);
    tile_.slot(ExpressionPlan::h)[c] = static_cast<C>(h);
    tile_.slot(ExpressionPlan::i)[c] =
        static_cast<C>(query - s.first_query + (x_.top_left ? 0 : s.keys - s.queries));
  }

  // Fills the blocks of constants, and computes the values of all classes except `pair`.
  void run_classes() {
    const i64 n = rows_ * width_, differences = width_ + keys_ - 1,
              most = is_regular_ ? at_least(n, differences) : n;
    C *const i = tile_.slot(Plan::i), *const t = tile_.slot(Plan::t);
    for (int c = 0; c < p_.constants; ++c) {
      C* to = tile_.slot(Plan::arguments + c);
      for (i64 e = 0; e < most; e += W) store(to + e, splat<V>(static_cast<C>(p_.constant[c])));
    }
    repeat_columns(tile_.slot(Plan::b), most);
    repeat_columns(tile_.slot(Plan::h), most);
    run(Plan::head, Plan::head, nullptr, most);
    if (is_regular_) {
      const C i0 = i[0];
      for (i64 j = 0; j < keys_; ++j) t[j] = static_cast<C>(key0_ + j) - first_key_[0];
      run(Plan::key, Plan::key, nullptr, keys_);
      keep(Plan::key, nullptr, keys_, 0);
      // Pair (j, c) has the difference number c − j + keys − 1.
      for (i64 e = 0; e < differences; ++e)
        t[e] = 0, i[e] = i0 - (static_cast<C>(key0_) - first_key_[0]) + static_cast<C>(e - (keys_ - 1));
      run(Plan::difference, Plan::difference, nullptr, differences);
      keep(Plan::difference, nullptr, differences, 0);
      for (i64 c = 0; c < width_; ++c) i[c] = i0 + static_cast<C>(c < count_ ? c : count_ - 1);
    }
    repeat_columns(i, n);
    run(Plan::query, Plan::query, nullptr, n);
    keep(Plan::head, nullptr, width_, 0);
    keep(Plan::query, nullptr, width_, 0);
  }

  // Repeats the first `width` values up to n values.
  void repeat_columns(C* columns, i64 n) const {
    for (i64 e = width_; e < n; e += W) store(columns + e, load(columns + e - width_));
  }

  // Runs the steps of the classes from … to on n values. The last step writes to `last`, if it is not null.
  void run(int from, int to, const C* score, i64 n, C* last = nullptr) {
    const int end = p_.first[to + 1];
    for (int s = p_.first[from]; s < end; ++s) step(p_.step[s], score, n, s == end - 1 ? last : nullptr);
  }

  // Writes a value of the class `key` or `difference` for each pair of a stretch.
  void spread(const Plan::Spread& s, i64 row, i64 rows) {
    const C* from = tile_.slot(s.from);
    C* to = tile_.slot(s.to);
    for (i64 r = 0; r < rows; ++r)
      for (i64 c = 0; c < width_; c += W) {
        const i64 e = r * width_ + c;
        store(to + e, !is_regular_        ? load(from + e)
                      : s.of == Plan::key ? splat<V>(from[row + r])
                                          : load(from + c + keys_ - 1 - row - r));
      }
  }

  void set_keys(i64 row, i64 rows) {
    C* t = tile_.slot(ExpressionPlan::t);
    for (i64 r = 0; r < rows; ++r) {
      const V key = splat<V>(static_cast<C>(key0_ + row + r));
      for (i64 c = 0; c < width_; c += W) store(t + r * width_ + c, key - load(first_key_ + c));
    }
  }

  void step(const Plan::Step& s, const C* score, i64 n, C* to) {
    if (!s.run) return read(s, score, n);
    const C* in[3];
    for (int k = 0; k < 3; ++k) in[k] = s.source[k] < 0 ? nullptr : source(s.source[k], score);
    s.run(to ? to : tile_.slot(s.slot), in[0], in[1], in[2], n);
  }

  bool is_visible(i64 row, i64 column) const {
    const C key = static_cast<C>(row);
    return column < count_ && key >= low_[column] && key < high_[column];
  }

  // Adds index·stride to n offsets. Indices that are out of range count as `start`.
  static void add_index(const C* index, i64 n, i64 size, i64 stride, i64 start, std::int32_t* to) {
    const C high = static_cast<C>(size), first = static_cast<C>(start);
    const auto by = static_cast<std::int32_t>(stride);
    for (i64 e = 0; e < n; ++e)
      to[e] +=
          static_cast<std::int32_t>((index[e] > C{-1} && index[e] < high ? index[e] : first) - first) * by;
  }
  static bool is_outside(C index, i64 size) { return !(index > C{-1} && index < static_cast<C>(size)); }

  // The values of a class that visible pairs read.
  ValueRange visible_values(int of, i64 n) const {
    if (!is_regular_ && of != Plan::head && of != Plan::query) return {0, n};
    ValueRange rows{keys_, 0}, columns{width_, 0}, differences{n, 0};
    for (i64 c = 0; c < count_; ++c) {
      const i64 low = low_[c] < 0 ? 0 : static_cast<i64>(low_[c]),
                high = at_most(keys_, static_cast<i64>(high_[c]));
      if (low >= high) continue;
      rows = {at_most(rows.from, low), at_least(rows.to, high)};
      columns = {at_most(columns.from, c), c + 1};
      differences = {at_most(differences.from, c - high + keys_), at_least(differences.to, c - low + keys_)};
    }
    return of == Plan::key          ? rows
           : of == Plan::difference ? differences
           : of == Plan::pair       ? ValueRange{0, n}
                                    : columns;
  }

  // Reads the elements of a captured tensor.
  void read(const Plan::Step& s, const C* score, i64 n) {
    const Plan::Capture& c = p_.capture[s.capture];
    const Arg& tensor = x_.captured[x_.expression->captures[static_cast<std::size_t>(s.capture)].tensor];
    const Layout& l = tensor.layout;
    C* const to = tile_.slot(s.slot);
    for (i64 e = 0; e < n; ++e) tile_.offsets[e] = 0;
    bool outside = false;
    const ValueRange visible = visible_values(c.of, n);
    for (int a = 0; a < c.rank; ++a) {
      const C* index = source(c.index[a], score);
      add_index(index, n, l.shape[a], l.strides[a], 0, tile_.offsets);
      for (i64 e = visible.from; e < visible.to; ++e) outside |= is_outside(index[e], l.shape[a]);
    }
    outside_[s.capture] |= outside;
    if (l.numel() == 0) {
      for (i64 e = 0; e < n; ++e) to[e] = 0;
      return;
    }
    const auto load_all = [&]<class S>(const S*) {
      const S* from = reinterpret_cast<const S*>(tensor.data);
      using Number = std::conditional_t<sizeof(S) == 2, float, S>;  // of a 16-bit float
      for (i64 e = 0; e < n; ++e) to[e] = static_cast<C>(static_cast<Number>(from[tile_.offsets[e]]));
    };
    switch (tensor.dtype) {
      case DType::f64:
        return load_all(static_cast<const double*>(nullptr));
      case DType::f32:
        return load_all(static_cast<const float*>(nullptr));
      case DType::bf16:
        return load_all(static_cast<const bfloat16*>(nullptr));
      case DType::f16:
        return load_all(static_cast<const float16*>(nullptr));
      case DType::i64:
        return load_all(static_cast<const i64*>(nullptr));
      case DType::i32:
        return load_all(static_cast<const std::int32_t*>(nullptr));
      default:
        return load_all(static_cast<const std::uint8_t*>(nullptr));
    }
  }

  // A value at a pair of a stretch: row r of the stretch, which is row `row + r` of the tile.
  C value_at(int slot, int of, const C* score, i64 row, i64 r, i64 column) const {
    const bool is_argument = slot == Plan::i || slot == Plan::t,
               is_pair = of == Plan::pair || !is_regular_ || is_argument;
    const i64 e = is_pair                  ? r * width_ + column
                  : of == Plan::key        ? row + r
                  : of == Plan::difference ? column - row - r + keys_ - 1
                                           : column;
    return source(slot, score)[e];
  }

  // Reports the indices of a capture that are out of range at visible pairs of a stretch.
  void report(int k, const C* score, i64 row, i64 rows) const {
    const Plan::Capture& c = p_.capture[k];
    const AttentionExpression::Capture& capture = x_.expression->captures[static_cast<std::size_t>(k)];
    const Layout& l = x_.captured[capture.tensor].layout;
    const C* mask = p_.mask < 0 || capture.in_mask ? nullptr : source(p_.mask, score);
    for (i64 r = 0; r < rows; ++r)
      for (i64 column = 0; column < count_; ++column) {
        if (!is_visible(row + r, column) || (mask && mask[r * width_ + column] == 0)) continue;
        for (int a = 0; a < c.rank; ++a) {
          const C index = value_at(c.index[a], c.index_of[a], score, row, r, column);
          if (!is_outside(index, l.shape[a])) continue;
          const auto argument = [&](int slot) { return static_cast<i64>(tile_.slot(slot)[column]); };
          const i64 b = argument(Plan::b), h = argument(Plan::h), i = argument(Plan::i),
                    t = key0_ + row + r - static_cast<i64>(first_key_[column]);
          tile_.worker->refuse_index({index - index == 0 ? static_cast<i64>(index) : -1,
                                      l.shape[a],
                                      ((b * x_.H + h) * (i64{x_.L} + x_.T) + x_.L + i) * x_.T + t,
                                      capture.tensor,
                                      a,
                                      {b, h, i, t}});
        }
      }
  }

  // The pairs of a row of the tile that the other options make visible.
  auto visible(i64 row, i64 column) const {
    const V key = splat<V>(static_cast<C>(row));
    return (key >= load(low_ + column)) & (key < load(high_ + column));
  }

  void finish(C* a, C* slope, bool multiplies, i64 row, i64 rows) {
    const V zero = {}, none = splat<V>(static_cast<C>(-__builtin_inf()));
    const C *result = p_.result < 0 ? nullptr : source(p_.result, a),
            *mask = p_.mask < 0 ? nullptr : source(p_.mask, a),
            *own = p_.slope < 0 ? nullptr : source(p_.slope, a);
    for (i64 r = 0; r < rows; ++r)
      for (i64 c = 0; c < width_; c += W) {
        const i64 e = r * width_ + c;
        V value = load((result ? result : a) + e);
        auto seen = zero == zero;
        if (mask) seen = load(mask + e) != zero;
        if (slope) {
          V s = own ? load(own + e) : splat<V>(C{1});
          if (multiplies) s *= load(slope + e);
          auto there = seen;
          if (is_partial_) there &= visible(row + r, c);
          store(slope + e, select(there, s, zero));
        }
        if (mask) value = select(seen, value, none);
        store(a + e, value);
      }
  }

  // The class of a capture's values in this tile.
  int class_of(int c) const {
    const int of = p_.capture[c].of;
    return is_regular_ || of == Plan::head || of == Plan::query ? of : Plan::pair;
  }
  // Stores the numbers of the elements of all captures of a class, for n values that begin at `at`.
  void keep(int of, const C* score, i64 n, i64 at) {
    if (!tile_.sums) return;
    for (int c = 0; c < static_cast<int>(x_.expression->captures.size()); ++c) {
      const Plan::Capture& plan = p_.capture[c];
      if (!plan.sums || class_of(c) != of) continue;
      const int tensor = x_.expression->captures[static_cast<std::size_t>(c)].tensor;
      const CapturedSlice& slice = tile_.slice[tensor];
      std::int32_t* element = tile_.element[c] + at;
      for (i64 e = 0; e < n; ++e) element[e] = 0;
      for (int a = 0; a < plan.rank; ++a)
        add_index(source(plan.index[a], score), n, x_.captured[tensor].layout.shape[a], slice.stride[a],
                  slice.start(a, tile_.first_b, tile_.first_h, tile_.first_key), element);
    }
  }
  // Stores the elements and the slopes of pairs.
  void keep_pairs(const C* score, i64 row, i64 rows) {
    keep(Plan::pair, score, rows * width_, row * width_);
    const C* mask = p_.mask < 0 ? nullptr : source(p_.mask, score);
    for (int c = 0; c < static_cast<int>(x_.expression->captures.size()); ++c) {
      if (p_.capture[c].slope < 0) continue;
      const C* from = source(p_.capture[c].slope, score);
      C* slope = tile_.slope[c] + row * width_;
      for (i64 r = 0; r < rows; ++r)
        for (i64 column = 0; column < width_; column += W) {
          const i64 e = r * width_ + column;
          V s = load(from + e);
          if (mask) s = select(load(mask + e) != V{}, s, V{});
          if (is_partial_) s = select(visible(row + r, column), s, V{});
          store(slope + e, s);
        }
    }
  }

  const AttentionCall& x_;
  const ExpressionTile<C>& tile_;
  const ExpressionPlan& p_;
  const i64 width_, count_, key0_, keys_;
  const i64 rows_;         // of a stretch
  const bool is_partial_;  // whether some pairs of the tile are invisible
  bool is_regular_ = false;
  bool outside_[AttentionExpression::max_captures] = {};  // captures with indices that may be out of range
  // For each column: the first key of its sequence, and the visible rows of the tile, low … high − 1.
  C first_key_[ExpressionPlan::block], low_[ExpressionPlan::block], high_[ExpressionPlan::block];
};

// Adds the gradients of captured tensors to the sums of the tile's slices: z_A ⊛ ∂A/∂element. za is [keys ×
// width], and 0 for invisible pairs.
template <class C>
void add_captured(const AttentionCall& x, const QueryTile<C>& t, const ExpressionTile<C>& tile, i64 keys,
                  const C* za) {
  using V = vector_t<C>;
  using Plan = ExpressionPlan;
  constexpr int W = Tile<C>::width;
  const Plan& p = expression_of(x);
  const bool regular = is_regular(x, t);
  for (std::size_t c = 0; c < x.expression->captures.size(); ++c) {
    const Plan::Capture& capture = p.capture[c];
    if (!capture.sums) continue;
    double* sum = tile.sum[x.expression->captures[c].tensor];
    const std::int32_t* element = tile.element[c];
    const C* slope = tile.slope[c];
    const auto term = [&](i64 e) { return slope ? load(za + e) * load(slope + e) : load(za + e); };
    const auto add = [&](i64 value, C terms) {
      sum[element[value]] += static_cast<double>(terms) * capture.constant;
    };
    const bool by_query = capture.of == Plan::head || capture.of == Plan::query;
    if (by_query) {
      for (i64 column = 0; column < t.width; column += W) {
        V terms = {};
        for (i64 j = 0; j < keys; ++j) terms += term(j * t.width + column);
        for (i64 l = 0; l < W && column + l < t.count; ++l) add(column + l, terms[l]);
      }
    } else if (regular && capture.of == Plan::key) {
      for (i64 j = 0; j < keys; ++j) {
        V terms = {};
        for (i64 column = 0; column < t.width; column += W) terms += term(j * t.width + column);
        add(j, reduce_add(terms));
      }
    } else if (regular && capture.of == Plan::difference) {
      C sums[Plan::block] = {};  // by number of the difference
      for (i64 j = 0; j < keys; ++j)
        for (i64 column = 0; column < t.width; column += W) {
          C* to = sums + column + keys - 1 - j;
          store(to, load(to) + term(j * t.width + column));
        }
      for (i64 e = 0; e < t.width + keys - 1; ++e) add(e, sums[e]);
    } else {
      for (i64 j = 0; j < keys; ++j)
        for (i64 column = 0; column < t.count; ++column) {
          const i64 e = j * t.width + column;
          add(e, slope ? za[e] * slope[e] : za[e]);
        }
    }
  }
}

}  // namespace tg::cpu::TG_ISA
