"""The profile of some steps of a training run."""

import glade


class StepProfile:
    """Records ten steps, after five that are not like the others, and writes them as a Chrome trace."""

    BEFORE, STEPS = 5, 10

    def __init__(self, path, device):
        self._path, self._device = path, device
        path.write_text("")  # what cannot be written shows before the training
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
        """Prints where the time of the recorded steps went, and whether the trace is written."""
        if self._is_recording:
            self._recorded += 1
            self._stop()
        if self._profile is None:
            print(f"the run was too short for a profile: {self._path} is empty")
        else:
            table = self._profile.table(self._recorded)
            print(f"where the time of {self._recorded} steps went\n{table}{self._outcome}")

    def _stop(self):
        self._is_recording = False
        self._profile = glade.profiler.stop()
        try:
            self._path.write_text(self._profile.chrome_trace())
            self._outcome = f"the trace is in {self._path}"
        except OSError as error:  # with which the training goes on
            self._outcome = f"cannot write {self._path}: {error.strerror}"
