// What only a GPU has: its memory pool, streams, pinned memory, errors of the runtime. Skipped without one.
#include <glade/core/cuda/grid.h>
#include <glade/core/stream.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::all_close;
using testing_support::throws_with;

TEST(Device, NamesAndParses) {
  EXPECT_EQ(kCPU.name(), "cpu");
  EXPECT_EQ(kCUDA.name(), "cuda:0");
  EXPECT_EQ((Device{DeviceType::cuda, 3}.name()), "cuda:3");
  EXPECT_EQ(Device::parse("cpu"), kCPU);
  EXPECT_EQ(Device::parse("auto"), cuda::is_available() ? kCUDA : kCPU);
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0", "CPU", "cuda:99999999999"})
    EXPECT_TRUE(throws_with<ValueError>([&] { Device::parse(bad); }, bad)) << bad;
  EXPECT_TRUE(throws_with<DeviceError>([] { Device::parse("cuda:1000"); }, "cuda:1000 is not there"));
}

TEST(Device, WithoutGpuEverythingSaysSo) {
  if (cuda::is_available()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_EQ(cuda::device_count(), 0);
  EXPECT_TRUE(throws_with<DeviceError>([] { Device::parse("cuda"); }, "cuda:0 is not there"));
  EXPECT_THROW(empty({2}, {DType::float32, kCUDA}), DeviceError);
  EXPECT_THROW(to_data(zeros({2}), kCUDA), DeviceError);
  EXPECT_THROW(Stream::create(), DeviceError);
  EXPECT_THROW(cuda::synchronize(), DeviceError);
  EXPECT_THROW(cuda::memory_stats(), DeviceError);
  EXPECT_THROW(cuda::reset_peak_memory_stats(), DeviceError);
  EXPECT_THROW(cuda::empty_cache(), DeviceError);
  EXPECT_FALSE(empty_pinned({2}, DType::float32).storage()->is_pinned());
}

TEST(Grid, HasBlocksForEveryElement) {
  constexpr std::int64_t kMost = 0x7fffffff;
  EXPECT_EQ(cuda::blocks_for(0, 256), 0);
  EXPECT_EQ(cuda::blocks_for(256, 256), 1);
  EXPECT_EQ(cuda::blocks_for(257, 256), 2);
  EXPECT_EQ(cuda::blocks_for(kMost, 1), kMost);
  EXPECT_EQ(cuda::blocks_for(kMost * 256, 256), kMost);
  for (const std::int64_t blocks : {kMost + 1, 2 * kMost + 3})  // the latter is 1 as an unsigned number
    for (const int threads : {1, 256})
      EXPECT_TRUE(throws_with<ShapeError>([&] { cuda::blocks_for(blocks * threads, threads); }, "expected at most 2147483647"));
}

TEST(Stream, CurrentIsSetForAScopeAndAThread) {
  int first = 0, second = 0;  // any addresses serve as handles here
  EXPECT_EQ(current_stream().handle, nullptr);
  {
    StreamGuard outer({0, &first});
    EXPECT_EQ(current_stream(0).handle, &first);
    EXPECT_EQ(current_stream(1).handle, nullptr);
    {
      StreamGuard inner({0, &second});
      EXPECT_EQ(current_stream(0).handle, &second);
    }
    EXPECT_EQ(current_stream(0).handle, &first);
    void* seen = &first;
    std::thread([&] { seen = current_stream(0).handle; }).join();
    EXPECT_EQ(seen, nullptr);
  }
  EXPECT_EQ(current_stream().handle, nullptr);
  EXPECT_THROW(current_stream(-1), DeviceError);
  EXPECT_THROW(current_stream(1000), DeviceError);
}

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

constexpr TensorOptions kFloats{DType::float32, kCUDA};

TEST_F(CudaTest, MemoryStatisticsCountLiveTensors) {
  const std::size_t before = cuda::memory_stats().allocated;
  constexpr std::size_t bytes = std::size_t{1} << 22;
  {
    const Tensor x = empty({1 << 20}, kFloats);
    EXPECT_EQ(cuda::memory_stats().allocated, before + bytes);
    const Tensor view = x.as_strided({2}, {1}, 0);
    EXPECT_EQ(cuda::memory_stats().allocated, before + bytes);
    cuda::reset_peak_memory_stats();
    { const Tensor y = empty({1 << 20}, kFloats), z = empty({1 << 20}, kFloats); }
    const cuda::MemoryStats stats = cuda::memory_stats();
    EXPECT_EQ(stats.allocated, before + bytes);
    EXPECT_EQ(stats.peak_allocated, before + 3 * bytes);
    EXPECT_GE(stats.reserved, stats.peak_allocated);
  }
  EXPECT_EQ(cuda::memory_stats().allocated, before);
  EXPECT_GT(cuda::memory_stats().peak_allocated, before);
  cuda::reset_peak_memory_stats();
  EXPECT_EQ(cuda::memory_stats().peak_allocated, before);
}

TEST_F(CudaTest, PoolKeepsFreedMemoryUntilEmptied) {
  cuda::empty_cache();
  const std::size_t before = cuda::memory_stats().reserved;
  constexpr std::size_t bytes = std::size_t{1} << 28;
  { const Tensor x = empty({1 << 26}, kFloats); }
  cuda::synchronize();
  EXPECT_GE(cuda::memory_stats().reserved, bytes);
  cuda::empty_cache();
  EXPECT_LE(cuda::memory_stats().reserved, before);
}

TEST_F(CudaTest, BlocksComeBackOnTheirStreamUntilEmptied) {
  for (const std::int64_t numel : {16, 1 << 22}) {
    const auto block = [&] { return empty({numel}, kFloats).raw_data(); };
    void* const first = block();
    EXPECT_EQ(block(), first);
    EXPECT_NE(empty({3 * numel}, kFloats).raw_data(), first);
    {
      const StreamGuard guard(Stream::create());
      void* const other = block();
      EXPECT_NE(other, first);
      EXPECT_EQ(block(), other);
    }
    EXPECT_EQ(block(), first);
  }
  cuda::empty_cache();
  const Tensor x = full({16}, 1, kFloats), y = full({16}, 2, kFloats);
  EXPECT_NE(x.raw_data(), y.raw_data());
  EXPECT_TRUE(all_close(x, full({16}, 1)));
}

TEST_F(CudaTest, BlocksOfManySizesAreKeptWithinBounds) {
  // Together many times what is kept: in 4 MiB steps to 1 GiB.
  const Tensor x = full({1000}, 3, kFloats);
  for (std::int64_t numel = std::int64_t{1} << 20; numel <= std::int64_t{1} << 28; numel += std::int64_t{1} << 20) {
    const Tensor part = empty({numel}, kFloats).as_strided({2}, {numel - 1}, 0);
    fill_data(part, 1);
    EXPECT_TRUE(all_close(part, full({2}, 1))) << numel;
  }
  EXPECT_TRUE(all_close(x, full({1000}, 3)));
  cuda::empty_cache();
  EXPECT_LE(cuda::memory_stats().reserved, std::size_t{1} << 28);
}

TEST_F(CudaTest, OutOfMemoryTellsTheNumbersAndLeavesAllAsItWas) {
  const Tensor x = full({1000}, 3, kFloats);
  const std::size_t before = cuda::memory_stats().allocated;
  const auto ask = [] { empty({std::int64_t{1} << 40}, kFloats); };
  for (const char* text : {"out of memory", "asked for 4398046511104 bytes", "allocated", "reserved", "free on the device"})
    EXPECT_TRUE(throws_with<OutOfMemoryError>(ask, text));
  EXPECT_EQ(cuda::memory_stats().allocated, before);
  EXPECT_TRUE(all_close(x, full({1000}, 3)));
  EXPECT_TRUE(all_close(full({1000}, 4, kFloats), full({1000}, 4)));
}

TEST_F(CudaTest, ErrorsNameTheCall) {
  const Tensor x = zeros({4}, kFloats);
  const Tensor beyond = Tensor::from_blob(x.raw_data(), {std::int64_t{1} << 50}, kFloats);
  EXPECT_TRUE(throws_with<CudaError>([&] { fill_data(beyond, 0); }, "cudaMemsetAsync"));
  EXPECT_TRUE(throws_with<CudaError>([&] { fill_data(beyond, 0); }, "copy_cuda.cu"));
  EXPECT_TRUE(all_close(full({4}, 2, kFloats), full({4}, 2)));
}

TEST_F(CudaTest, EmptyTensorsTakeNoMemory) {
  const std::size_t before = cuda::memory_stats().allocated;
  const Tensor x = zeros({0, 3}, kFloats);
  EXPECT_EQ(cuda::memory_stats().allocated, before);
  EXPECT_TRUE(to_data(x, kCPU).to_vector<float>().empty());
}

TEST_F(CudaTest, PinnedCopiesOnAStream) {
  const Stream stream = Stream::create();
  const std::int64_t n = 1 << 20;
  const Tensor source = empty_pinned({n}, DType::float32), target = empty_pinned({n}, DType::float32);
  ASSERT_TRUE(source.storage()->is_pinned());
  for (std::int64_t i = 0; i < n; ++i) source.data<float>()[i] = static_cast<float>(i);
  fill_data(target, -1);
  {
    StreamGuard guard(stream);
    const Tensor x = empty({n}, kFloats);
    copy_data(x, source);
    copy_data(target, x);
  }
  stream.synchronize();
  EXPECT_EQ(target.to_vector<float>(), source.to_vector<float>());
}

/// Work of some tens of milliseconds on the current stream.
void keep_busy(const Tensor& x) {
  for (int i = 0; i < 200; ++i) fill_data(x, i % 2 + 0.5);
}

/// Copies of all sizes, more in all than pass at once through pinned memory, from one place that changes after each. Returns the
/// number of wrong bytes.
std::int64_t copy_from_changing_memory(std::int64_t rounds, int first) {
  const std::vector<std::int64_t> sizes{
      0, 1, 255, 257, 1 << 16, (1 << 16) + 1, (1 << 20) + 5, 3 << 20, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 20 << 20};
  const Tensor source = empty({sizes.back()}, {DType::uint8, kCPU});
  std::vector<std::pair<Tensor, int>> copies;
  for (std::int64_t i = 0; i < rounds * static_cast<std::int64_t>(sizes.size()); ++i) {
    const int value = static_cast<int>((first + i) % 251);
    const std::int64_t size = sizes[static_cast<std::size_t>(i) % sizes.size()];
    const Tensor part = source.as_strided({size}, {1}, 0);
    fill_data(part, value);
    if (size > 0) part.data<std::uint8_t>()[size - 1] = 255;
    copies.emplace_back(to_data(part, kCUDA), value);
    fill_data(source, 254);
  }
  std::int64_t wrong = 0;
  for (const auto& [copy, value] : copies) {
    const Tensor host = to_data(copy, kCPU);
    for (std::int64_t i = 0; i < host.numel(); ++i)
      wrong += host.data<std::uint8_t>()[i] != (i == host.numel() - 1 ? 255 : value);
  }
  return wrong;
}

TEST_F(CudaTest, HostMemoryMayChangeAfterACopy) {
  keep_busy(empty({1 << 26}, kFloats));
  EXPECT_EQ(copy_from_changing_memory(3, 0), 0);
}

TEST_F(CudaTest, HostMemoryMayChangeAfterCopiesOfSeveralThreads) {
  std::vector<std::thread> threads;
  std::vector<std::int64_t> wrong(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t, &wrong] {
      const StreamGuard guard(Stream::create());
      const Tensor large = empty({1 << 24}, kFloats);
      for (int i = 0; i < 2; ++i) {
        keep_busy(large);
        wrong[static_cast<std::size_t>(t)] += copy_from_changing_memory(1, 50 * t + i);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::int64_t>(4));
}

TEST_F(CudaTest, CopiesToTheGpuDoNotWaitForEarlierWork) {
  const auto seconds = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const Tensor host = full({1 << 15}, 3), device = empty({1 << 15}, kFloats), large = empty({1 << 28}, kFloats);
  copy_data(device, host);  // what is made at a first use
  keep_busy(large);
  cuda::synchronize();
  const double begin = seconds();
  keep_busy(large);
  const double queued = seconds();
  for (int i = 0; i < 10; ++i) copy_data(device, host);
  const double copied = seconds();
  cuda::synchronize();
  EXPECT_LT(copied - queued, (seconds() - begin) / 4);
  EXPECT_TRUE(all_close(device, host, 0, 0));
}

TEST_F(CudaTest, AStreamWaitsForAnother) {
  const Stream stream = Stream::create();
  const Tensor x = zeros({1 << 24}, kFloats);
  for (int i = 1; i <= 5; ++i) {
    stream.wait(current_stream());
    {
      StreamGuard guard(stream);
      for (int repeat = 0; repeat < 20; ++repeat) fill_data(x, i + 0.5);
    }
    current_stream().wait(stream);
    const auto values = x.to_vector<float>();
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](float v) { return v == static_cast<float>(i) + 0.5f; }));
  }
}

// Memory dropped on another stream than the one still writing to it must not be handed out before the writes are done.
TEST_F(CudaTest, MemoryIsNotReusedWhileItsStreamStillWrites) {
  const Stream stream = Stream::create();
  const std::int64_t n = 1 << 22;
  for (int i = 0; i < 10; ++i) {
    {
      Tensor x;
      StreamGuard guard(stream);
      x = empty({n}, kFloats);
      for (int repeat = 0; repeat < 50; ++repeat) fill_data(x, 1.5);
      StreamGuard back({0, nullptr});
      x = Tensor();  // freed with the default stream as the current one
    }
    const auto values = full({n}, 2.5, kFloats).to_vector<float>();
    EXPECT_EQ(std::count(values.begin(), values.end(), 2.5f), n);
  }
}

TEST_F(CudaTest, ThreadsAllocateAndFreeAtOnce) {
  const std::size_t before = cuda::memory_stats().allocated;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t, &wrong] {
      const Stream stream = Stream::create();
      StreamGuard guard(stream);
      for (int i = 0; i < 100; ++i) {
        const Tensor x = full({1000 + i}, t + 0.5, kFloats);
        const auto values = x.to_vector<float>();
        wrong[static_cast<std::size_t>(t)] += static_cast<int>(
            std::count_if(values.begin(), values.end(), [&](float v) { return v != static_cast<float>(t) + 0.5f; }));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
  EXPECT_EQ(cuda::memory_stats().allocated, before);
}

TEST_F(CudaTest, StridedCopiesFromAndToTheHost) {
  std::vector<float> values(24);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor host = Tensor::from_vector(values, {4, 6});
  const Tensor transposed = host.as_strided({6, 4}, {1, 6}, 0);
  EXPECT_TRUE(all_close(to_data(transposed, kCUDA), transposed, 0, 0));
  const Tensor device = to_data(host, kCUDA);
  EXPECT_TRUE(all_close(to_data(device.as_strided({6, 4}, {1, 6}, 0), kCPU), transposed, 0, 0));

  for (const auto& [target_device, source_device] : {std::pair{kCUDA, kCPU}, std::pair{kCPU, kCUDA}}) {
    // Every second column, converted and broadcast on the way.
    const Tensor target = full({4, 6}, -1, {DType::float64, target_device});
    const Tensor row = Tensor::from_vector<std::int32_t>({7, 8, 9}, source_device);
    copy_data(target.as_strided({4, 3}, {6, 2}, 1), row);
    std::vector<double> expected;
    for (int i = 0; i < 4; ++i) expected.insert(expected.end(), {-1, 7, -1, 8, -1, 9});
    EXPECT_EQ(target.to_vector<double>(), expected);
  }
}

TEST_F(CudaTest, CopiesBetweenTwoGpus) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "only one CUDA device";
  const Device second{DeviceType::cuda, 1};
  const Tensor x = testing_support::random_tensor({1000, 33}, kCUDA);
  const Tensor y = to_data(x, second);
  EXPECT_EQ(y.device(), second);
  EXPECT_TRUE(all_close(y, x, 0, 0));
  EXPECT_TRUE(all_close(to_data(y.as_strided({33, 1000}, {1, 33}, 0), kCUDA), x.as_strided({33, 1000}, {1, 33}, 0), 0, 0));
}

// A tensor that outlives main is freed when the runtime may be gone; the process must still end well.
TEST_F(CudaTest, StaticTensorsMayOutliveTheRuntime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked process cannot use CUDA, a fresh one can
  EXPECT_EXIT(
      {
        static const Tensor kept = full({1000}, 1, kFloats);
        static const Tensor pinned = empty_pinned({1000}, DType::float32);
        std::exit(kept.to_vector<float>()[0] == 1 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace glade
