#include <glade/ops/linear_attention/plan_sm90_stream_k.h>

namespace glade::sm90 {

bool StreamK::divide(std::int64_t items, int chunks_of_item, int most, double time) {
  constexpr double kRounding = 1e-6;
  most = std::min(most, kMostShares);
  chunks = chunks_of_item;
  states_first = items < most;
  whole = static_cast<int>(std::max<std::int64_t>(items / most - 1, 0));
  items -= std::int64_t{whole} * most;
  const double of_item = kStart + chunks, of_cut = states_first ? 1 + kChunkOfStates : 1;
  time -= whole * of_item;
  std::int64_t item = 0;  // the share begins with this one,
  int begin = 0;          // at this chunk,
  double known = 0;       // before which the state is known after this time
  for (clusters = 0; clusters < most; ++clusters) {
    first[clusters] = static_cast<int>(item * chunks + begin);
    if (item == items) {
      if (whole == 0) break;  // a cluster without any item has nothing to do
      continue;
    }
    double left = time + kRounding;
    if (begin > 0) {
      const int rest = chunks - begin;
      if (known + kStart + rest > time) {  // its end is beyond this share, too
        const int part = static_cast<int>(std::min((time - 2 * kStart) / of_cut, time - kStart - known));
        if (!states_first || part < 1) return false;
        begin += part;
        known = std::max(known, kStart + part * kChunkOfStates);
        continue;
      }
      left -= kStart + rest;
      ++item, begin = 0;
    }
    const std::int64_t entire = std::min(static_cast<std::int64_t>(std::max(left, 0.0) / of_item), items - item);
    item += entire;
    left -= static_cast<double>(entire) * of_item;
    if (item == items) continue;
    begin = std::max(static_cast<int>((left - (states_first ? 2 : 1) * kStart) / of_cut), 0);
    known = kStart + begin * (states_first ? kChunkOfStates : 1);
    if (begin == 0 && first[clusters] == item * chunks) return false;
  }
  first[clusters] = static_cast<int>(item * chunks + begin);
  return item == items;
}

double StreamK::least_time(std::int64_t items, int chunks_of_item, int most) {
  most = std::min(most, kMostShares);
  const double of_item = kStart + chunks_of_item;
  const std::int64_t waves = (items + most - 1) / most;
  const auto fits = [&](double time) { return StreamK().divide(items, chunks_of_item, most, time); };
  double low = static_cast<double>(items) * of_item / most, high = static_cast<double>(waves) * of_item;
  while (high - low > 0.01 * high) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace glade::sm90
