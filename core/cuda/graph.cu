// Recording work on a stream, and replaying it.
#include <glade/core/graph.h>

#include <optional>
#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/graph_memory.h>
#include <glade/core/format.h>

namespace glade::cuda {

struct Graph::Recording {
  explicit Recording(int device) : device(device) {
    DeviceGuard guard({DeviceType::cuda, device});
    int lowest = 0, highest = 0;
    GLADE_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    // Before what is recorded on other streams (see autograd/side_stream.h), as everything waits for it in the end.
    GLADE_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  }
  ~Recording() {
    end();
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    cudaStreamDestroy(stream);
  }

  void begin();
  /// The captured graph, or null where the capture was spoiled.
  cudaGraph_t end() noexcept;

  int device;
  cudaStream_t stream = nullptr;
  std::optional<StreamGuard> scope;  // during the capture
  std::shared_ptr<GraphMemory> memory = std::make_shared<GraphMemory>(device);
  cudaGraphExec_t executable = nullptr;
  std::optional<Stream> last;  // that it was replayed on
  std::vector<std::function<void()>> before_replay;
};

namespace {

thread_local std::vector<std::function<void()>>* recording_here = nullptr;  // what is called before replays of the recording

}  // namespace

void Graph::Recording::begin() {
  // Relaxed: what CUDA sets up at a first use (modules, handles, memory) may be set up now. What may not be captured is refused
  // by check_not_capturing.
  GLADE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  scope.emplace(Stream{device, stream});
  memory->begin();
  recording_here = &before_replay;
}

cudaGraph_t Graph::Recording::end() noexcept {
  if (!scope) return nullptr;
  recording_here = nullptr;
  memory->end();
  scope.reset();
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) return graph;
  cudaGetLastError();
  return nullptr;
}

Graph::Graph(int device) : device_(device) { check_device(device); }

void Graph::capture(const std::function<void()>& f) {
  begin_capture();
  try {
    f();
  } catch (...) {
    abandon_capture();
    throw;
  }
  end_capture();
}

void Graph::begin_capture() {
  check_not_capturing("a capture inside of a capture", "a thread records one graph at a time");
  recording_ = nullptr;
  recording_ = std::make_shared<Recording>(device_);
  recording_->begin();
}

void Graph::end_capture() {
  if (recording_ == nullptr || recording_here != &recording_->before_replay)
    fail<CudaError>("graph capture: end_capture without begin_capture on this thread");
  DeviceGuard guard({DeviceType::cuda, device_});
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(&cudaGraphDestroy)> graph(recording_->end(),
                                                                                               &cudaGraphDestroy);
  const std::shared_ptr<Recording> recording = std::exchange(recording_, nullptr);
  if (graph == nullptr)
    fail<CudaError>("graph capture: spoiled by work that cannot be captured, or by a stream that was not joined");
  GLADE_CUDA(cudaGraphInstantiate(&recording->executable, graph.get(), 0));
  recording_ = recording;
}

void Graph::abandon_capture() noexcept {
  if (recording_ == nullptr || !recording_->scope) return;
  if (const cudaGraph_t graph = recording_->end()) cudaGraphDestroy(graph);
  recording_ = nullptr;
}

bool Graph::is_captured() const { return recording_ != nullptr && recording_->executable != nullptr; }

void Graph::replay() {
  check_not_capturing("a replay", "graphs do not contain graphs");
  if (!is_captured()) fail<CudaError>("graph replay: nothing was captured");
  DeviceGuard guard({DeviceType::cuda, device_});
  const Stream current = current_stream(device_);
  if (recording_->last && recording_->last->handle != current.handle) current.wait(*recording_->last);
  for (const auto& f : recording_->before_replay) f();
  GLADE_CUDA(cudaGraphLaunch(recording_->executable, static_cast<cudaStream_t>(current.handle)));
  if (!recording_->last || recording_->last->handle != current.handle)
    recording_->memory->used_on(static_cast<cudaStream_t>(current.handle));
  recording_->last = current;
}

bool is_capturing() { return recording_here != nullptr; }

void before_replay(std::function<void()> f) {
  if (is_capturing()) recording_here->push_back(std::move(f));
}

void check_not_capturing(std::string_view what, std::string_view why) {
  if (is_capturing()) fail<CudaError>("graph capture: {} cannot be captured: {}", what, why);
}

}  // namespace glade::cuda
