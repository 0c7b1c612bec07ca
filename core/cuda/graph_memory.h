#pragma once
// The memory that a graph's replays read and write.
#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

namespace glade::cuda {

/// While a thread records a graph its memory comes from here, in blocks from the device's pool. Nobody else gets a block as
/// long as the graph can be replayed:
///  - Inside the capture a block that was let go of is handed out again, but only on the stream that it was made for and let go
///    of on: there the recorded order, which every replay keeps, puts its old use before the new one.
///  - A block of the pool that is let go of inside the capture may be read by what was recorded before: it is kept. So is the
///    memory of another graph of which a block is let go of there.
///  - A block that is let go of after the capture is kept too: the next replay writes to it.
///  - With the graph, blocks that no tensor holds go back to the pool, after the replays and after what was queued where they
///    were let go of. The others become tensors' own: they go back when those are let go of.
class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
 public:
  explicit GraphMemory(int device) : device_(device) {}
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  /// From begin to end the calling thread's allocations on the device are made here.
  void begin();
  void end();
  /// Says that work on the memory was queued on a stream.
  void used_on(cudaStream_t stream);

 private:
  friend class Pool;  // of the device, whose mutex guards all that follows
  struct Block {
    std::size_t bytes;
    cudaStream_t stream;  ///< that it was made for
    bool held;            ///< by a tensor
  };
  int device_;
  std::unordered_map<void*, Block> blocks_;
  std::multimap<std::pair<cudaStream_t, std::size_t>, void*> reusable_;
  std::set<cudaStream_t> users_;
  std::set<std::shared_ptr<GraphMemory>> kept_;
};

}  // namespace glade::cuda
