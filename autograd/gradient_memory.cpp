#include <glade/autograd/gradient_memory.h>

#include <glade/autograd/accumulate.h>

namespace glade::autograd {

void reserve_gradient_memory(const Tensor& leaf, const Tensor& memory) {
  AutogradSlot& slot = *leaf.impl()->autograd;
  const std::lock_guard lock(slot.mutex);
  slot.reserved = {memory, {}};
}

Tensor empty_leaf_gradients(const Node& node, std::size_t first, std::size_t count, const Shape& shape,
                            const TensorOptions& options) {
  std::vector<AutogradSlot*> slots;
  std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (std::size_t i = first; i < first + count; ++i) {
    if (!node.leads_to_leaf(i)) return empty(shape, options);
    AutogradSlot* const slot = static_cast<AccumulateGrad&>(*node.edges()[i].node).leaf()->autograd.get();
    const std::lock_guard lock(slot->mutex);
    const auto& [memory, used] = slot->reserved;
    if (!memory.defined() || memory.dtype() != options.dtype || slot->grad.defined() || !used.expired())
      return empty(shape, options);
    auto* const data = static_cast<std::byte*>(memory.raw_data());
    if (begin == nullptr) begin = data;
    else if (data != end) return empty(shape, options);
    end = data + static_cast<std::size_t>(memory.numel()) * dtype_size(memory.dtype());
    slots.push_back(slot);
  }
  if (static_cast<std::size_t>(end - begin) != static_cast<std::size_t>(shape.numel()) * dtype_size(options.dtype))
    return empty(shape, options);
  const Tensor made = Tensor::from_blob(begin, shape, options, [memory = slots.front()->reserved.values] {});
  for (AutogradSlot* const slot : slots) {
    const std::lock_guard lock(slot->mutex);
    slot->reserved.used = made.storage();
  }
  return made;
}

}  // namespace glade::autograd
