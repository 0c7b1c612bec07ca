// Making tensors: from numbers and arrays, regular, random.
#include <glade/core/generator.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;

Tensor with_grad(Tensor x, bool requires_grad) {
  if (requires_grad) x.set_requires_grad();
  return x;
}

/// ValueError for numbers that a type of integers cannot hold, among them infinities and NaN.
void check_integers(const Tensor& values, DType dtype) {
  if (is_integral(values.dtype())) {
    for (const std::int64_t number : to_data(values, DType::int64).to_vector<std::int64_t>()) check_fits("tensor", number, dtype);
  } else {
    for (const double number : to_data(values, DType::float64).to_vector<double>()) check_fits("tensor", number, dtype);
  }
}

/// What nested lists and other data mean: NumPy reads them, and Python's floats become float32.
Tensor read_data(const py::object& data, const std::optional<DType>& dtype) {
  const auto number = scalar_from(data.ptr());
  if (number && !dtype && py::hasattr(data, "dtype"))  // NumPy's, which may be Python floats too
    return tensor_from_array(py::module_::import("numpy").attr("asarray")(data));
  if (number)
    return full({}, *number,
                {dtype.value_or(PyFloat_Check(data.ptr()) ? DType::float32 : number->promoted(DType::boolean)), kCPU});
  const Tensor array = tensor_from_array(data);
  if (array.defined()) return dtype ? to_data(array, *dtype) : array;
  const Tensor values = tensor_from_array(py::module_::import("numpy").attr("asarray")(data));
  if (dtype && is_integral(*dtype) && *dtype != DType::boolean) check_integers(values, *dtype);
  return to_data(values, dtype.value_or(values.dtype() == DType::float64 ? DType::float32 : values.dtype()));
}

Tensor make_tensor(const py::object& data, const std::optional<DType>& dtype, const std::optional<Device>& device,
                   bool requires_grad) {
  const Tensor source = read_data(data, dtype);
  Tensor x = empty(source.shape(), {source.dtype(), device.value_or(source.device())});
  {
    py::gil_scoped_release unlocked;
    copy_data(x, source);
  }
  return with_grad(x, requires_grad);
}

Tensor as_tensor(const py::object& data, const std::optional<DType>& dtype, const std::optional<Device>& device) {
  Tensor x = read_data(data, dtype);
  py::gil_scoped_release unlocked;
  return device ? to(x, *device) : x;
}

/// A factory of tensors of a shape given as sizes or as a sequence, with the options that all factories have.
template <class F>
void def_factory(py::module_& module, const char* name, F make, const char* doc) {
  module.def(
      name,
      [name, make](const py::args& shape, DType dtype, const Device& device, bool requires_grad) {
        const Shape sizes = shape_from_arguments(shape, name);
        py::gil_scoped_release unlocked;
        return with_grad(make(sizes, TensorOptions{dtype, device}), requires_grad);
      },
      py::kw_only(), arg("dtype") = DType::float32, arg("device") = kCPU, arg("requires_grad") = false, doc);
}

/// A factory of tensors like another one, but for what is given.
template <class F>
void def_like(py::module_& module, const char* name, F make, const char* doc) {
  module.def(
      name,
      [make](const Tensor& x, const std::optional<DType>& dtype, const std::optional<Device>& device, bool requires_grad) {
        py::gil_scoped_release unlocked;
        return with_grad(make(x.shape(), TensorOptions{dtype.value_or(x.dtype()), device.value_or(x.device())}), requires_grad);
      },
      arg("x"), py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(), arg("requires_grad") = false, doc);
}

/// A method that makes a tensor of another shape with this one's dtype and device, but for what is given.
template <class F>
void def_new(const char* name, F make, const std::string& what) {
  def_method(
      name,
      [name, make](const Tensor& x, const py::args& shape, const std::optional<DType>& dtype, const std::optional<Device>& device,
                   bool requires_grad) {
        const Shape sizes = shape_from_arguments(shape, name);
        py::gil_scoped_release unlocked;
        return with_grad(make(sizes, TensorOptions{dtype.value_or(x.dtype()), device.value_or(x.device())}), requires_grad);
      },
      py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(), arg("requires_grad") = false,
      (what +
       " of the given sizes, and of this tensor's dtype and device where they are not given. ShapeError for negative sizes.")
          .c_str());
}

void bind_new() {
  def_new("new_zeros", [](const Shape& s, TensorOptions o) { return zeros(s, o); }, "Zeros");
  def_new("new_ones", [](const Shape& s, TensorOptions o) { return ones(s, o); }, "Ones");
  def_new("new_empty", [](const Shape& s, TensorOptions o) { return empty(s, o); }, "An uninitialized tensor");
  def_method(
      "new_full",
      [](const Tensor& x, const Shape& shape, Scalar value, const std::optional<DType>& dtype,
         const std::optional<Device>& device, bool requires_grad) {
        return with_grad(full(shape, value, {dtype.value_or(x.dtype()), device.value_or(x.device())}), requires_grad);
      },
      arg("shape"), arg("value"), py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(),
      arg("requires_grad") = false,
      "A tensor of the shape whose elements are all `value`, of this tensor's dtype and device where they are not given. "
      "ShapeError "
      "for negative sizes.");
  def_method(
      "new_tensor",
      [](const Tensor& x, const py::object& data, const std::optional<DType>& dtype, const std::optional<Device>& device,
         bool requires_grad) { return make_tensor(data, dtype.value_or(x.dtype()), device.value_or(x.device()), requires_grad); },
      arg("data"), py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(), arg("requires_grad") = false,
      "A new tensor with a copy of `data`, as glade.tensor makes it, of this tensor's dtype and device where they are not "
      "given.");
}

Generator& generator_or_default(Generator* generator) { return generator != nullptr ? *generator : default_generator(); }

/// A factory of random tensors of a shape, with parameters of the distribution.
template <class F, class... Parameter>
void def_random(py::module_& module, const char* name, const char* doc, F make, const Parameter&... parameter) {
  module.def(name, make, arg("shape"), parameter..., py::kw_only(), arg("dtype") = DType::float32, arg("device") = kCPU,
             arg("generator") = py::none(), Unlocked(), doc);
}

using RandomState = std::pair<std::uint64_t, std::uint64_t>;

RandomState state_of(const Generator& generator) {
  const Generator::State state = generator.state();
  return {state.seed, state.offset};
}

void set_state(Generator& generator, RandomState state) { generator.set_state({state.first, state.second}); }

/// randint(high, size) and randint(low, high, size).
Tensor random_integers(std::int64_t low, const std::variant<std::monostate, std::int64_t, Shape>& high,
                       const std::optional<Shape>& size, DType dtype, const Device& device, Generator* generator) {
  const auto* bound = std::get_if<std::int64_t>(&high);
  const auto* shape = size ? &*size : std::get_if<Shape>(&high);
  if (shape == nullptr) throw py::type_error("randint: size is missing: randint(low, high, size) or randint(high, size)");
  const py::gil_scoped_release unlocked;
  return randint(bound != nullptr ? low : 0, bound != nullptr ? *bound : low, *shape, {dtype, device},
                 generator_or_default(generator));
}

Tensor arange_over(Scalar start, const std::optional<Scalar>& stop, Scalar step, const std::optional<DType>& dtype,
                   const Device& device) {
  const Scalar from = stop ? start : Scalar(0), to = stop.value_or(start);
  const bool integers = is_integral(from.promoted(DType::int64)) && is_integral(to.promoted(DType::int64)) &&
                        is_integral(step.promoted(DType::int64));
  return arange(from, to, step, {dtype.value_or(integers ? DType::int64 : DType::float32), device});
}

}  // namespace

void bind_creation(py::module_& module) {
  py::class_<Generator>(
      module, "Generator",
      "A source of random numbers: the n-th number of a seed is the same on CPU and GPU. Factories of random tensors take one "
      "as `generator`; without, they take default_generator().")
      .def(py::init<std::uint64_t>(), arg("seed") = 0)
      .def("seed", &Generator::seed, arg("seed"), "Starts again, from another seed.")
      .def(
          "manual_seed",
          [](const py::object& self, std::uint64_t seed) {
            self.cast<Generator&>().seed(seed);
            return self;
          },
          arg("seed"), "seed(seed); returns the generator.")
      .def("__repr__",
           [](const Generator& g) {
             const auto [seed, drawn] = state_of(g);
             return "glade.Generator(seed=" + std::to_string(seed) + ", numbers drawn: " + std::to_string(drawn) + ")";
           })
      .def_property("state", state_of, set_state, "(seed, numbers drawn): set it to go on from there.");
  module.def(
      "tensor", make_tensor, arg("data"), py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(),
      arg("requires_grad") = false,
      "A new tensor with a copy of `data`: a number, nested sequences, a NumPy array, a tensor, or any array with DLPack.\n\n"
      "Without `dtype` Python's floats give float32, ints int64 and bools bool; arrays keep their type. Without `device` arrays "
      "stay where they are. DTypeError for an element type that glade lacks.");
  module.def(
      "as_tensor", as_tensor, arg("data"), py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(),
      "Like glade.tensor, but nothing is copied where dtype and device allow: the tensor shares the array's memory, and a tensor "
      "is itself. A read-only array is copied. DTypeError for an element type that glade lacks.");
  def_factory(
      module, "empty", [](const Shape& s, TensorOptions o) { return empty(s, o); },
      "An uninitialized tensor: empty(2, 3) or empty((2, 3)). ShapeError for negative sizes.");
  def_factory(
      module, "zeros", [](const Shape& s, TensorOptions o) { return zeros(s, o); },
      "Zeros: zeros(2, 3) or zeros((2, 3)). ShapeError for negative sizes.");
  def_factory(
      module, "ones", [](const Shape& s, TensorOptions o) { return ones(s, o); },
      "Ones: ones(2, 3) or ones((2, 3)). ShapeError for negative sizes.");
  def_factory(
      module, "rand", [](const Shape& s, TensorOptions o) { return rand(s, o); },
      "Random numbers, uniform in [0, 1), from the generator that manual_seed seeds; the same on CPU and GPU. Floating-point "
      "dtypes only (DTypeError).");
  def_factory(
      module, "randn", [](const Shape& s, TensorOptions o) { return randn(s, o); },
      "Random numbers, normal with mean 0 and deviation 1, from the generator that manual_seed seeds; the same on CPU and GPU. "
      "Floating-point dtypes only (DTypeError).");
  def_like(
      module, "rand_like", [](const Shape& s, TensorOptions o) { return rand(s, o); },
      "Random numbers, uniform in [0, 1), of x's shape, and of its dtype and device where they are not given. DTypeError for "
      "integers.");
  def_like(
      module, "randn_like", [](const Shape& s, TensorOptions o) { return randn(s, o); },
      "Random numbers, normal with mean 0 and deviation 1, of x's shape, and of its dtype and device where they are not given. "
      "DTypeError for integers.");
  module.def(
      "full_like",
      [](const Tensor& x, Scalar value, const std::optional<DType>& dtype, const std::optional<Device>& device,
         bool requires_grad) {
        return with_grad(full(x.shape(), value, {dtype.value_or(x.dtype()), device.value_or(x.device())}), requires_grad);
      },
      arg("x"), arg("value"), py::kw_only(), arg("dtype") = py::none(), arg("device") = py::none(), arg("requires_grad") = false,
      "A tensor of x's shape whose elements are all `value`, of x's dtype and device where they are not given. DeviceError for a "
      "device that is not there.");
  module.def(
      "full",
      [](const Shape& shape, Scalar value, const std::optional<DType>& dtype, const Device& device, bool requires_grad) {
        return with_grad(full(shape, value, {dtype.value_or(value.promoted(DType::boolean)), device}), requires_grad);
      },
      arg("shape"), arg("value"), py::kw_only(), arg("dtype") = py::none(), arg("device") = kCPU, arg("requires_grad") = false,
      "A tensor of the shape whose elements are all `value`. Without `dtype` a float gives float32, an int int64, a bool bool. "
      "ShapeError for negative sizes.");
  def_like(
      module, "empty_like", [](const Shape& s, TensorOptions o) { return empty(s, o); },
      "An uninitialized tensor of x's shape, and of its dtype and device where they are not given. DeviceError for a device that "
      "is not there.");
  def_like(
      module, "zeros_like", [](const Shape& s, TensorOptions o) { return zeros(s, o); },
      "Zeros of x's shape, and of its dtype and device where they are not given. DeviceError for a device that is not there.");
  def_like(
      module, "ones_like", [](const Shape& s, TensorOptions o) { return ones(s, o); },
      "Ones of x's shape, and of its dtype and device where they are not given. DeviceError for a device that is not there.");
  module.def("arange", arange_over, arg("start"), arg("stop") = py::none(), arg("step") = 1, py::kw_only(),
             arg("dtype") = py::none(), arg("device") = kCPU,
             "start, start + step, ... up to but without stop; arange(n) counts from 0 to n - 1. Without `dtype` integers give "
             "int64 and "
             "floats float32. ValueError for a step of 0.");
  module.def(
      "linspace",
      [](double start, double stop, std::int64_t count, DType dtype, const Device& device) {
        return linspace(start, stop, count, {dtype, device});
      },
      arg("start"), arg("stop"), arg("count"), py::kw_only(), arg("dtype") = DType::float32, arg("device") = kCPU,
      "[count] numbers in even steps from start to stop, both included. DTypeError for integers, ValueError for a negative "
      "count.");
  module.def(
      "eye", [](std::int64_t n, DType dtype, const Device& device) { return eye(n, {dtype, device}); }, arg("n"), py::kw_only(),
      arg("dtype") = DType::float32, arg("device") = kCPU, "The identity matrix [n, n]. ShapeError for negative n.");
  def_random(
      module, "uniform",
      "Random numbers, uniform in [low, high), from `generator` or else the default one. ValueError unless low < high, "
      "DTypeError "
      "for integers.",
      [](const Shape& shape, double low, double high, DType dtype, const Device& device, Generator* generator) {
        return uniform(shape, low, high, {dtype, device}, generator_or_default(generator));
      },
      arg("low") = 0.0, arg("high") = 1.0);
  def_random(
      module, "normal",
      "Random numbers, normal with the given mean and standard deviation, from `generator` or else the default one. ValueError "
      "for a "
      "negative deviation, DTypeError for integers.",
      [](const Shape& shape, double mean, double deviation, DType dtype, const Device& device, Generator* generator) {
        return normal(shape, mean, deviation, {dtype, device}, generator_or_default(generator));
      },
      arg("mean") = 0.0, arg("deviation") = 1.0);
  def_random(
      module, "bernoulli", "1 with probability p, else 0. ValueError for p outside [0, 1].",
      [](const Shape& shape, double p, DType dtype, const Device& device, Generator* generator) {
        return bernoulli(shape, p, {dtype, device}, generator_or_default(generator));
      },
      arg("p"));
  module.def(
      "randint", random_integers, arg("low"), arg("high") = py::none(), arg("size") = py::none(), py::kw_only(),
      arg("dtype") = DType::int64, arg("device") = kCPU, arg("generator") = py::none(),
      "Random integers in [low, high) of shape `size`; randint(high, size) begins at 0. The same on CPU and GPU. ValueError "
      "unless low < high, or where the dtype does not hold them.");
  module.def(
      "randperm",
      [](std::int64_t n, const Device& device, Generator* generator) {
        return randperm(n, device, generator_or_default(generator));
      },
      arg("n"), py::kw_only(), arg("device") = kCPU, arg("generator") = py::none(), Unlocked(),
      "The numbers 0 to n - 1 in random order, int64 [n]. ShapeError for negative n.");
  def_both(
      module, "multinomial",
      [](const Tensor& weights, std::int64_t num_samples, bool replacement, Generator* generator) {
        return multinomial(weights, num_samples, replacement, generator_or_default(generator));
      },
      arg("weights"), arg("num_samples"), arg("replacement") = false, py::kw_only(), arg("generator") = py::none(), Unlocked(),
      "int64 [num_samples] or [rows, num_samples]: positions drawn in proportion to the weights [n] or [rows, n], which need not "
      "add up to 1. Waits for the device. ValueError for weights that are negative, not finite or, without replacement, too "
      "few.");
  bind_new();
  module.def("default_generator", default_generator, py::return_value_policy::reference,
             "The generator that is used where none is given.");
  module.def("manual_seed", [](std::uint64_t seed) { manual_seed(seed); }, arg("seed"), "Seeds the default generator.");
}

}  // namespace glade::python
