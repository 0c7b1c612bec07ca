#include <glade/autograd/weight_copy.h>

#include <numeric>

#include <glade/autograd/node.h>
#include <glade/core/graph.h>
#include <glade/core/row_blocks.h>

namespace glade::autograd {

namespace {

bool is_current(const WeightCopy& copy, const Tensor& x) {
  const std::shared_ptr<Storage> of = copy.of.lock();
  if (!copy.values.defined() || of == nullptr || of != x.storage() || copy.version != of->version()) return false;
  return !copy.loans || *copy.loans == of->loans();
}

/// To be kept; nothing while others may write to x, as the values would be old at once.
WeightCopy copy_of(const Tensor& x, const Tensor& values) {
  if (x.storage()->is_lent()) return {};
  return {values, x.storage(), x.storage()->version(), x.storage()->loans()};
}

}  // namespace

Tensor weight_copy(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return contiguous_data(x);
  AutogradSlot* const slot = x.is_leaf() ? x.impl()->autograd.get() : nullptr;
  if (slot == nullptr) return to_data(x, dtype);
  std::lock_guard lock(slot->mutex);
  WeightCopy& copy = slot->copy;
  if (is_current(copy, x) && copy.values.dtype() == dtype) return copy.values;
  const Tensor values = to_data(x, dtype);
  // What a graph records has no values before its first replay.
  if (!cuda::is_capturing()) copy = copy_of(x, values);
  return values;
}

Tensors weight_copies_joined(const Tensors& leaves, DType dtype) {
  Tensors kept;
  std::vector<std::int64_t> rows;
  bool are_kept = true;
  for (const Tensor& x : leaves) {
    kept.push_back(find_weight_copy(x));
    are_kept = are_kept && kept.back().defined() && kept.back().dtype() == dtype;
    rows.push_back(x.size(0));
  }
  if (are_kept && join_rows(kept).defined()) return kept;
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const Tensors copies = split_rows(empty({all, leaves[0].size(1)}, {dtype, leaves[0].device()}), rows);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Tensor& known = kept[i];
    copy_data(copies[i], known.defined() && known.dtype() == dtype ? known : leaves[i]);
    AutogradSlot* const slot = leaves[i].impl()->autograd.get();
    if (slot == nullptr || cuda::is_capturing()) continue;
    std::lock_guard lock(slot->mutex);
    slot->copy = copy_of(leaves[i], copies[i]);
  }
  return copies;
}

Tensor find_weight_copy(const Tensor& x) {
  AutogradSlot* const slot = x.impl()->autograd.get();
  if (slot == nullptr) return {};
  std::lock_guard lock(slot->mutex);
  return is_current(slot->copy, x) ? slot->copy.values : Tensor();
}

void keep_weight_copy(const Tensor& x, const Tensor& copy) {
  AutogradSlot& slot = *x.impl()->autograd;
  std::lock_guard lock(slot.mutex);
  if (is_current(slot.copy, x) && slot.copy.values.is_same(copy)) return;
  copy_data(copy, x);
  slot.copy = copy_of(x, copy);
}

void set_weight_copy(const Tensor& x, const Tensor& copy) {
  AutogradSlot& slot = *x.impl()->autograd;
  std::lock_guard lock(slot.mutex);
  slot.copy = {copy, x.storage(), x.storage()->version(), std::nullopt};
}

void drop_weight_copy(const Tensor& x) {
  AutogradSlot* const slot = x.impl()->autograd.get();
  if (slot == nullptr) return;
  std::lock_guard lock(slot->mutex);
  slot->copy = {};
}

void weight_changed(const Tensor& x, bool copied) {
  x.storage()->bump_version();
  if (!copied) return;
  std::lock_guard lock(x.impl()->autograd->mutex);
  x.impl()->autograd->copy.version = x.storage()->version();
}

}  // namespace glade::autograd
