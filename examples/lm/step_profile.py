"""The profile of some steps of a training run."""

import glade


class StepProfile:
    """Records ten steps, after five that are not like the others, and writes them as a Chrome trace."""

    BEFORE, STEPS = 5, 10

    def __init__(self, path, device):
        self._path, self._device = path, device
        self._steps = self._recorded = 0
        self._profile, self._is_recording = None, False

    def next_step(self):
        """To be called before every step."""
        if self._is_recording:
            self._recorded += 1
            if self._recorded == self.STEPS:
                self._stop()
        if self._steps == self.BEFORE:
            glade.profiler.start(self._device)
            self._is_recording = True
        self._steps += 1

    def finish(self):
        """Prints where the time of the recorded steps went."""
        if self._is_recording:
            self._recorded += 1
            self._stop()
        if self._profile is None:
            print(f"the run was too short for a profile: {self._path} is not written")
        else:
            table = self._profile.table(self._recorded)
            print(f"where the time of {self._recorded} steps went\n{table}the trace is in {self._path}")

    def _stop(self):
        self._is_recording = False
        self._profile = glade.profiler.stop()
        self._path.write_text(self._profile.chrome_trace())
