#include <glade/core/generator.h>
#include <glade/core/philox.h>
#include <glade/core/philox_block.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

namespace glade {
namespace {

void expect_numbers(const Philox4& given, const std::vector<std::uint32_t>& expected) {
  EXPECT_EQ(std::vector<std::uint32_t>(given.x, given.x + 4), expected);
}

TEST(Philox, BlocksAreTheSameNumbers) {
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x123456789abcdef0}})
    for (const std::uint64_t first : {std::uint64_t{5}, (std::uint64_t{1} << 32) - 9, ~std::uint64_t{0} - 70}) {
      std::uint32_t numbers[4][cpu::kPhiloxBlock];
      cpu::philox_block(seed, first, numbers);
      for (std::uint64_t i = 0; i < cpu::kPhiloxBlock; ++i)
        expect_numbers(philox(seed, first + i), {numbers[0][i], numbers[1][i], numbers[2][i], numbers[3][i]});
    }
}

// The known answer of the Random123 library for a counter and key of zeros.
TEST(Philox, KnownAnswer) { expect_numbers(philox(0, 0), {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}); }

// The rounds as the paper states them, on 128-bit products.
TEST(Philox, FollowsTheDefinition) {
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{0xdeadbeef12345678}})
    for (const std::uint64_t counter : {std::uint64_t{5}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      std::vector<std::uint64_t> c{counter & 0xffffffff, counter >> 32, 0, 0};
      std::uint64_t key0 = seed & 0xffffffff, key1 = seed >> 32;
      for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        c = {(b >> 32) ^ c[1] ^ key0, b & 0xffffffff, (a >> 32) ^ c[3] ^ key1, a & 0xffffffff};
        key0 = (key0 + 0x9E3779B9ull) & 0xffffffff;
        key1 = (key1 + 0xBB67AE85ull) & 0xffffffff;
      }
      expect_numbers(philox(seed, counter), std::vector<std::uint32_t>(c.begin(), c.end()));
    }
}

TEST(Philox, UniformNumbers) {
  EXPECT_EQ(uniform_from_bits(0), 0.0f);
  EXPECT_EQ(uniform_from_bits(~0u), 1.0f - 0x1p-24f);
  EXPECT_EQ(uniform_from_bits(0x80000000u), 0.5f);
  // Sixteen equal bins of 2^18 numbers: a count deviates from its mean by about 124, and by six times that once in a
  // billion.
  std::vector<int> counts(16);
  for (std::uint64_t counter = 0; counter < (1u << 16); ++counter)
    for (const std::uint32_t bits : philox(42, counter).x) ++counts[static_cast<std::size_t>(uniform_from_bits(bits) * 16)];
  for (const int count : counts) EXPECT_NEAR(count, 1 << 14, 6 * 124);
}

TEST(Generator, ReservesCounters) {
  Generator generator(7);
  EXPECT_EQ(generator.reserve(10), (Generator::State{7, 0}));
  EXPECT_EQ(generator.reserve(5), (Generator::State{7, 10}));
  EXPECT_EQ(generator.state(), (Generator::State{7, 15}));
}

TEST(Generator, StateCanBeSavedAndRestored) {
  Generator generator(7);
  generator.reserve(100);
  const Generator::State saved = generator.state();
  const Generator::State next = generator.reserve(3);
  generator.reserve(50);
  generator.set_state(saved);
  EXPECT_EQ(generator.reserve(3), next);
  generator.seed(8);
  EXPECT_EQ(generator.state(), (Generator::State{8, 0}));
}

TEST(Generator, ThreadsGetDistinctCounters) {
  Generator generator;
  std::vector<std::vector<std::uint64_t>> taken(4);
  std::vector<std::thread> threads;
  for (auto& mine : taken)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) mine.push_back(generator.reserve(2).offset);
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<std::uint64_t> all;
  for (const auto& mine : taken) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], 2 * i);
}

TEST(Generator, ManualSeedSeedsTheDefaultOne) {
  manual_seed(99);
  EXPECT_EQ(default_generator().state(), (Generator::State{99, 0}));
  default_generator().reserve(4);
  manual_seed(99);
  EXPECT_EQ(default_generator().state(), (Generator::State{99, 0}));
}

}  // namespace
}  // namespace glade
