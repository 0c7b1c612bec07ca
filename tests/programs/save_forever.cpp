// save_forever PATH KEEP: a training run that does nothing but save, for checkpoint_saver_test to kill. Goes on from the
// newest good checkpoint, and writes the step to standard output as soon as it is safe.
#include <glade/nn/checkpoint_saver.h>
#include <unistd.h>

#include <cstdlib>

using namespace glade;

int main(int, char** argv) {
  const std::string path = argv[1];
  const int keep = std::atoi(argv[2]);
  const auto newest = nn::open_newest_checkpoint(path, [](const std::string&) { std::_Exit(3); });  // none is ever damaged
  nn::CheckpointSaver saver(path, keep);
  for (std::int64_t step = newest ? newest->header().step + 1 : 1;; ++step) {
    nn::Checkpoint checkpoint;
    checkpoint.step = step;
    checkpoint.model["x"] = full({1000}, step, {DType::int64, kCPU});
    checkpoint.model["y"] = full({300, 100}, step, {DType::int64, kCPU});
    saver.save(checkpoint);
    saver.wait();
    if (write(STDOUT_FILENO, &step, sizeof step) != sizeof step) return 1;
  }
}
