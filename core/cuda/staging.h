#pragma once
// Copies to a GPU from memory of the host that is not pinned.
#include <cstddef>

#include <glade/core/stream.h>

namespace glade::cuda {

/// Queues a copy of `bytes` to the GPU of `stream`, there, by way of pinned memory: `src` may change as soon as this returns. It
/// waits only until there is room for them in that memory. False, and nothing is queued, where they are too many, where there is
/// no such memory, where the room is taken by copies on another stream, and where the stream is being captured: a graph would
/// read that memory again when other bytes lie there. The stream's device is the current one.
bool copy_staged(void* dst, const void* src, std::size_t bytes, Stream stream);

}  // namespace glade::cuda
