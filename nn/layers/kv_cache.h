// KvCache: keys and values of the tokens that a model has read, so that each further token costs one row of
// everything except attention's reads. Its tensors are parameters that programs extend at the end of a run.
// CacheCall: what a model's layers see of it.
#pragma once

#include <map>
#include <optional>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/paged_attn.h>

namespace tg::nn {

class KvCache {
 public:
  // Pages with room for `page_size` tokens each. Either every sequence has one page, which is then as large
  // as a sequence may become, or many small ones, wherever there are free ones (PagePool). A tensor is
  // allocated, with zeros, when the first graph extends it. Rows are kept in `dtype`, in which attention is
  // then computed, or else as they come. Throws ShapeError for sizes that are not positive, DTypeError for a
  // dtype that is not floating.
  KvCache(std::int64_t pages, std::int64_t page_size, Device device = Device::cpu(),
          std::optional<DType> dtype = {});
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t pages() const { return pages_; }
  std::int64_t page_size() const { return page_size_; }
  std::size_t bytes() const;
  // By layer and kind: [pages·page_size, heads, n], a row for each token.
  const std::map<std::string, Parameter>& tensors() const { return tensors_; }

 private:
  friend class CacheCall;
  std::int64_t pages_, page_size_;
  Device device_;
  std::optional<DType> dtype_;
  std::map<std::string, Parameter> tensors_;
};

// One call of a model on tokens that follow those in a cache: attention layers append to the cache and read
// all of it. How many tokens a sequence has is an input, so one program serves every position in every
// sequence.
class CacheCall {
 public:
  // For a cache with one page for each sequence: `length` new tokens in each of them. The graph gets the
  // input "cached" (i32 [sequences]); a run in which a sequence outgrows its page fails with an Error. Throws
  // ShapeError for a length outside 1 … page_size.
  CacheCall(Graph& graph, KvCache& cache, std::int64_t length);
  // For a cache in pages, rows of one token each, x [singles + groups · length, 1, …]: of `singles` sequences
  // the last token; then groups of `length` tokens that follow one another in a sequence, the last ones up to
  // some place. A sequence may have several groups: they see the tokens of those before them. Rows are left
  // out of what is written where their tokens are in the cache already, or are none. The graph gets the
  // inputs "rows" and "positions" (i32 [singles + groups · length, 1]), "lengths" (i32 [singles + groups])
  // and "table" (i32 [singles + groups, `room` pages]). A token's results have the same bits in any company
  // (paged_attn). Throws ShapeError for numbers that are negative, no row, a length or a room that is not
  // positive.
  struct InPages {
    std::int64_t singles = 0, groups = 0, length = 1, room = 1;
  };
  CacheCall(Graph& graph, KvCache& cache, const InPages& call);

  // To be fed. Of a cache with one page for each sequence: tokens in the cache so far, i32 [sequences].
  const Tensor& cached() const { return cached_; }
  // Of a cache in pages: for each token the number of its row, page·page_size + place, or −1 to write none;
  // its place in the sequence (0, where there is none); tokens up to the last of each single and of each
  // group, that one included; the sequence's pages, as many as those take.
  const Tensor& rows() const { return rows_; }
  const Tensor& lengths() const { return lengths_; }
  const Tensor& table() const { return table_; }

  const Tensor& positions() const {
    return positions_;
  }  // i32 [sequences, length]: of the new tokens; see above

  // Throws ShapeError for x [sequences, length, …] of other sizes than the call's.
  void check(TensorArg x) const;
  // Appends keys [sequences, Hk, length, d] and values [sequences, Hk, length, dv] to the cache's tensors
  // name + ".k" and ".v". Each query [sequences, H, length, d] sees the keys of its sequence up to its own, →
  // o [sequences, H, length, dv] in q's dtype. Throws ShapeError and DTypeError for rows that do not fit the
  // call or what the cache holds.
  Tensor attend(const std::string& name, TensorArg q, TensorArg k, TensorArg v,
                const PagedAttentionOptions& options = {});
  // The same where the first `value_width` numbers of a key, 1 … d, are its value; they are kept once, under
  // `name`.
  Tensor attend(const std::string& name, TensorArg q, TensorArg k, std::int64_t value_width,
                const PagedAttentionOptions& options = {});
  // For CompileOptions::assign: compile() throws Error for a program that computes attend() but does not
  // assign what it appended.
  const std::vector<Assign>& assign() const { return assign_; }

 private:
  // All rows of the cache's tensor of this name, and new ones [sequences, length, heads, n] to be put among
  // them.
  struct Rows {
    Parameter held;
    Tensor added;
  };
  Rows rows_of(const std::string& name, const TensorArg& in);
  std::vector<Tensor> append(const std::vector<Rows>& tensors);
  Tensor attention(const Tensor& in, const Tensor& k, const Tensor& v, const PagedAttentionOptions& o) const;
  Tensor attention_in_pages(const Tensor& q, const Tensor& k, const Tensor& v,
                            const PagedAttentionOptions& o) const;

  KvCache& cache_;
  InPages parts_ = {};  // of a cache in pages
  Tensor cached_, rows_, lengths_, table_, positions_;
  std::vector<Assign> assign_;
};

}  // namespace tg::nn
