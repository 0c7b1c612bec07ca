#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/core/event.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/ops/matmul/matmul_kernels.h>

namespace glade::cuda {

namespace {

// cuBLASLt is column-major: it computes the transposed product, out^T = b^T a^T, so its first operand is our b. The
// row-major bytes of a matrix are the column-major bytes of its transpose, so no flag changes.

struct Types {
  cudaDataType_t data, scale;
  cublasComputeType_t compute;
};

/// float32 is computed in full, without TF32; 16-bit types accumulate in float32.
Types types_of(DType dtype) {
  switch (dtype) {
    case DType::float64: return {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case DType::bfloat16: return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::float16: return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    default: return {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
  }
}

struct Layout : cublasLtMatrixLayoutOpaque_t {
  /// Of `batch` row-major matrices [rows, columns].
  Layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t leading, std::int64_t batch,
         std::int64_t batch_stride) {
    GLADE_CUDA(
        cublasLtMatrixLayoutInit(this, type, static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), leading));
    if (batch == 1) return;
    const auto count = static_cast<std::int32_t>(batch);
    GLADE_CUDA(cublasLtMatrixLayoutSetAttribute(this, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    GLADE_CUDA(
        cublasLtMatrixLayoutSetAttribute(this, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof batch_stride));
  }
  Layout(cudaDataType_t type, const GemmMatrix& x, std::int64_t rows, std::int64_t columns, std::int64_t batch)
      : Layout(type, x.transposed ? columns : rows, x.transposed ? rows : columns, x.leading, batch, x.batch_stride) {}
};

struct Description : cublasLtMatmulDescOpaque_t {
  Description(const Gemm& p, Types types) {
    GLADE_CUDA(cublasLtMatmulDescInit(this, types.compute, types.scale));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (const int left = multiprocessors_left(p.device))
      set<std::int32_t>(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::max(multiprocessor_count(p.device) - left, 1));
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, types.data);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    GLADE_CUDA(cublasLtMatmulDescSetAttribute(this, attribute, &value, sizeof value));
  }
};

struct Algorithm {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspace;
};

struct Preference : cublasLtMatmulPreferenceOpaque_t {
  Preference() { GLADE_CUDA(cublasLtMatmulPreferenceInit(this)); }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    GLADE_CUDA(cublasLtMatmulPreferenceSetAttribute(this, attribute, &value, sizeof value));
  }
};

/// The largest power of two up to 256 that divides the address.
std::uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

/// Everything that a call needs but the algorithm.
struct Call {
  Types types;
  Description description;
  Layout a, b, out;

  explicit Call(const Gemm& p)
      : types(types_of(p.dtype)),
        description(p, types),
        a(types.data, p.a, p.m, p.k, p.batch),
        b(types.data, p.b, p.k, p.n, p.batch),
        out(types_of(p.out_dtype).data, p.m, p.n, p.n, p.batch, p.out_batch_stride) {}

  /// To `to` instead of p.out.
  void run(const Gemm& p, const Algorithm& algorithm, void* workspace, void* to) {
    const void* const addend = p.addend != nullptr ? p.addend : p.out;
    const double one64 = 1, beta64 = p.addend != nullptr;
    const float one32 = 1, beta32 = p.addend != nullptr;
    const bool wide = types.scale == CUDA_R_64F;
    const void* one = wide ? static_cast<const void*>(&one64) : &one32;
    const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
    GLADE_CUDA(cublasLtMatmul(cublaslt(p.device), &description, one, p.b.data, &b, p.a.data, &a, beta, addend, &out, to, &out,
                              &algorithm.algo, workspace, algorithm.workspace, stream(p.device)));
  }
};

bool splits_sums(const Algorithm& algorithm) {
  std::int32_t parts = 1;
  std::size_t written = 0;
  GLADE_CUDA(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, &written));
  return parts > 1;
}

/// The first of the proposals that are about as fast as the fastest, as measured. All of them but those left out, which split
/// sums, add up a result's terms in one order, so that the choice shows in nothing but time.
Algorithm fastest(const Gemm& p, Call& call, std::vector<Algorithm> proposals) {
  constexpr int kRuns = 5;
  // Under a lasting load a GPU's power is the limit, which brings proposals within a few percent of each other, whatever they
  // take one by one; and the clock swings by as much.
  constexpr double kAsFast = 1.05;
  std::erase_if(proposals, splits_sums);
  const std::size_t bytes = static_cast<std::size_t>(p.m * p.n) * dtype_size(p.out_dtype);
  const bool in_place = p.addend == p.out;
  const Scratch scratch(in_place ? bytes : 0, p.device);
  void* const to = in_place ? scratch.data() : p.out;
  std::size_t most = 0;
  for (const Algorithm& algorithm : proposals) most = std::max(most, algorithm.workspace);
  const Scratch workspace(most, p.device);
  const auto run = [&](const Algorithm& algorithm) { call.run(p, algorithm, workspace.data(), to); };

  std::for_each(proposals.begin(), proposals.end(), run);  // the first time kernels are loaded
  std::vector<Event> events;
  events.emplace_back(p.device.index).record();
  for (const Algorithm& algorithm : proposals) {
    for (int i = 0; i < kRuns; ++i) run(algorithm);
    events.emplace_back(p.device.index).record();
  }
  events.back().synchronize();
  std::vector<double> times;
  for (std::size_t i = 0; i < proposals.size(); ++i) times.push_back(events[i + 1].milliseconds_since(events[i]));
  const double enough = kAsFast * *std::min_element(times.begin(), times.end());
  const auto first = std::find_if(times.begin(), times.end(), [&](double time) { return time <= enough; });
  return proposals[static_cast<std::size_t>(first - times.begin())];
}

/// What cuBLASLt proposes with so much memory for a product beside its operands, best first.
std::vector<Algorithm> propose(const Gemm& p, Call& call, std::size_t workspace) {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.addend != nullptr ? p.addend : p.out));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.out));
  // A sum split along k is added up in the compute type, never in 16 bits.
  if (call.types.data != call.types.scale)
    preference.set<std::uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  constexpr int kProposals = 8;
  cublasLtMatmulHeuristicResult_t results[kProposals]{};
  int found = 0;
  GLADE_CUDA(cublasLtMatmulAlgoGetHeuristic(cublaslt(p.device), &call.description, &call.b, &call.a, &call.out, &call.out,
                                            &preference, kProposals, results, &found));
  std::vector<Algorithm> proposals;
  for (int i = 0; i < found; ++i) proposals.push_back({results[i].algo, results[i].workspaceSize});
  return proposals;
}

Algorithm find_algorithm(const Gemm& p, Call& call) {
  const std::vector<Algorithm> proposals = propose(p, call, std::size_t{32} << 20);
  if (proposals.empty())
    fail<CudaError>("matmul: cuBLASLt has no algorithm for {} [{}, {}] times [{}, {}]", p.dtype, p.m, p.k, p.k, p.n);
  // Worth a measurement, of 16-bit products on tensor cores alone, and possible: a capture runs nothing.
  constexpr double kLong = 4e9;
  const bool measure = dtype_size(p.dtype) == 2 && p.batch == 1 && static_cast<double>(p.m) * p.n * p.k >= kLong;
  if (!measure || is_capturing() || splits_sums(proposals[0])) return proposals[0];
  // Many use memory for a counter, which has to be cleared before, but come without it as well: those first.
  std::vector<Algorithm> all = propose(p, call, 0);
  all.insert(all.end(), proposals.begin(), proposals.end());
  return fastest(p, call, std::move(all));
}

/// What the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 12>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t x : key) hash = (hash ^ static_cast<std::uint64_t>(x)) * 0x9E3779B97F4A7C15u + (hash >> 29);
    return hash;
  }
};

/// Asking the heuristics takes longer than many products do, so that their answers are kept.
Algorithm cached_algorithm(const Gemm& p, Call& call) {
  static std::mutex mutex;
  static std::unordered_map<Key, Algorithm, KeyHash> cache;
  constexpr std::size_t kCapacity = 4096;
  const std::int64_t flags = (std::int64_t{multiprocessors_left(p.device)} << 24) |
                             (static_cast<std::int64_t>(p.out_dtype) << 16) | (static_cast<std::int64_t>(p.dtype) << 8) |
                             ((p.addend != nullptr) << 3) | (p.a.transposed << 2) | (p.b.transposed << 1) | (p.bias != nullptr);
  const std::int64_t alignments =
      ((std::int64_t{alignment(p.a.data)} * 512 + alignment(p.b.data)) * 512 + alignment(p.out)) * 512 + alignment(p.addend);
  const Key key{
      p.device.index,    flags, alignments, p.m, p.n, p.k, p.batch, p.a.leading, p.a.batch_stride, p.b.leading, p.b.batch_stride,
      p.out_batch_stride};
  std::lock_guard lock(mutex);
  const auto hit = cache.find(key);
  if (hit != cache.end()) return hit->second;
  if (cache.size() == kCapacity) cache.clear();
  return cache[key] = find_algorithm(p, call);
}

void run(const Gemm& p) {
  if (multiply_by_vector(p)) return;
  Call call(p);
  const Algorithm algorithm = cached_algorithm(p, call);
  const Scratch workspace(algorithm.workspace, p.device);
  call.run(p, algorithm, workspace.data(), p.out);
}

}  // namespace

void gemm(const Gemm& problem) {
  constexpr std::int64_t kMaxBatch = 65535;  // some of the library's kernels have the batch in the grid's third dimension
  DeviceGuard guard(problem.device);
  const auto bytes = static_cast<std::int64_t>(dtype_size(problem.dtype));
  const auto out_bytes = static_cast<std::int64_t>(dtype_size(problem.out_dtype));
  Gemm part = problem;
  for (std::int64_t first = 0; first < problem.batch; first += kMaxBatch) {
    part.batch = std::min(kMaxBatch, problem.batch - first);
    part.a.data = static_cast<const char*>(problem.a.data) + first * problem.a.batch_stride * bytes;
    part.b.data = static_cast<const char*>(problem.b.data) + first * problem.b.batch_stride * bytes;
    const std::int64_t at = first * problem.out_batch_stride * out_bytes;
    part.out = static_cast<char*>(problem.out) + at;
    if (problem.addend != nullptr) part.addend = static_cast<const char*>(problem.addend) + at;
    run(part);
  }
}

}  // namespace glade::cuda
