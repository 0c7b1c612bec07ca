// matmul beside the libraries' own calls: cblas_sgemm on the CPU, cublasGemmEx on CUDA. The libraries write to memory
// that is there already; glade makes a new result each time.
#include <cblas.h>

#include "measure.h"
#if defined(GLADE_WITH_CUDA)
#include <cublas_v2.h>
#endif

namespace {

using namespace glade;
using benchmarks::measure;

struct Problem {
  std::int64_t m, n, k;
  double operations() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

/// a [m, k] and b [k, n], or b [n, k] transposed, as a linear layer has it.
struct Operands {
  Tensor a, b;
  Operands(const Problem& p, bool transposed, TensorOptions options)
      : a(to_data(randn({p.m, p.k}, {DType::float32, options.device}), options.dtype)),
        b(to_data(randn(transposed ? Shape{p.n, p.k} : Shape{p.k, p.n}, {DType::float32, options.device}), options.dtype)) {}
};

void glade_matmul(benchmark::State& state, Problem p, bool transposed, TensorOptions options) {
  const Operands x(p, transposed, options);
  const Tensor b = transposed ? transpose(x.b, 0, 1) : x.b;
  measure(state, options.device, "FLOP/s", p.operations(), [&] { benchmark::DoNotOptimize(matmul(x.a, b)); });
}

void blas_matmul(benchmark::State& state, Problem p, bool transposed) {
  const Operands x(p, transposed, {});
  const Tensor out = empty({p.m, p.n});
  const auto m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  measure(state, kCPU, "FLOP/s", p.operations(), [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, m, n, k, 1, x.a.data<float>(), k,
                x.b.data<float>(), transposed ? k : n, 0, out.data<float>(), n);
  });
}

#if defined(GLADE_WITH_CUDA)
void cublas_matmul(benchmark::State& state, Problem p, bool transposed, DType dtype) {
  const Operands x(p, transposed, {dtype, kCUDA});
  const Tensor out = empty({p.m, p.n}, {dtype, kCUDA});
  const auto m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const cudaDataType_t type = dtype == DType::float32 ? CUDA_R_32F : CUDA_R_16BF;
  cublasHandle_t handle;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS || cublasSetStream(handle, benchmarks::stream()) != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error("cuBLAS does not start");
  const float one = 1, zero = 0;
  measure(state, kCUDA, "FLOP/s", p.operations(), [&] {
    if (cublasGemmEx(handle, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, x.b.raw_data(), type,
                     transposed ? k : n, x.a.raw_data(), type, k, &zero, out.raw_data(), type, n, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
      throw std::runtime_error("cublasGemmEx failed");
  });
  cublasDestroy(handle);
}
#endif

template <class F>
void add(const std::string& who, const Problem& p, bool transposed, DType dtype, Device device, F f) {
  const std::string name = "matmul/" + device.name() + "/" + std::string(dtype_name(dtype)) + "/" + std::to_string(p.m) + "x" +
                           std::to_string(p.n) + "x" + std::to_string(p.k) + (transposed ? "/transposed" : "") + "/" + who;
  benchmark::RegisterBenchmark(name.c_str(), f)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

const bool registered = [] {
  const std::vector<Problem> cpu_problems = {
      {64, 64, 64}, {256, 256, 256}, {1024, 1024, 1024}, {2048, 256, 256}, {1, 1024, 1024}};
  for (const Problem& p : cpu_problems)
    for (const bool transposed : {false, true}) {
      add("glade", p, transposed, DType::float32, kCPU,
          [=](benchmark::State& state) { glade_matmul(state, p, transposed, {DType::float32, kCPU}); });
      add("OpenBLAS", p, transposed, DType::float32, kCPU, [=](benchmark::State& state) { blas_matmul(state, p, transposed); });
    }
#if defined(GLADE_WITH_CUDA)
  const std::vector<Problem> cuda_problems = {
      {512, 512, 512}, {4096, 4096, 4096}, {8192, 8192, 8192}, {32768, 768, 768}, {32768, 2048, 768}};
  for (const Problem& p : cuda_problems)
    for (const DType dtype : {DType::bfloat16, DType::float32})
      for (const bool transposed : {false, true}) {
        if (!cuda::is_available()) break;
        add("glade", p, transposed, dtype, kCUDA,
            [=](benchmark::State& state) { glade_matmul(state, p, transposed, {dtype, kCUDA}); });
        add("cuBLAS", p, transposed, dtype, kCUDA, [=](benchmark::State& state) { cublas_matmul(state, p, transposed, dtype); });
      }
#endif
  return true;
}();

}  // namespace
