// The operators that conformance tests of custom operators use, and some that misbehave.

#include <cmath>
#include <numeric>
#include <poptorch/custom_op.hpp>

using namespace poptorch;

namespace {

OperatorIdentifier id(const char *name, int version = 1, OperatorIdentifier::Inputs inputs = 1, int outputs = 1) {
  return {"test.poptorch", name, version, inputs, outputs};
}

// Applies a function to each element; `Derived` has apply(value, index).
template <typename Derived> class Elementwise : public Op {
public:
  void setup() override { outInfo(0) = inInfo(0); }
  void compute(const Kernel &kernel) const override {
    forNumericType(kernel.inInfo(0).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *x = kernel.in<T>(0);
      T *y = kernel.out<T>(0);
      for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i)
        y[i] = static_cast<T>(static_cast<const Derived *>(this)->apply(static_cast<double>(x[i]), static_cast<size_t>(i)));
    });
  }
};

template <typename Scalar> class AddScalar : public Elementwise<AddScalar<Scalar>> {
public:
  explicit AddScalar(const Attributes &a) : scalar_(static_cast<double>(a.getAttribute<Scalar>("scalar"))) {}
  double apply(double x, size_t) const { return x + scalar_; }

private:
  double scalar_;
};
const OpCreator<AddScalar<Attributes::Float>> addScalarFloat(id("AddScalarFloat"));
const OpCreator<AddScalar<Attributes::Int>> addScalarInt(id("AddScalarInt"));

template <typename Vector> class AddVector : public Elementwise<AddVector<Vector>> {
public:
  explicit AddVector(const Attributes &a) : vector_(a.getAttribute<Vector>("vec")) {}
  double apply(double x, size_t i) const { return x + static_cast<double>(vector_.at(i)); }

private:
  Vector vector_;
};
const OpCreator<AddVector<Attributes::Floats>> addVectorFloat(id("AddScalarVecFloat"));
const OpCreator<AddVector<Attributes::Ints>> addVectorInt(id("AddScalarVecInt"));

class AddVecScalarMul : public Elementwise<AddVecScalarMul> {
public:
  explicit AddVecScalarMul(const Attributes &a)
      : vector_(a.getAttribute<Attributes::Floats>("vec")), scalar_(a.getAttribute<Attributes::Float>("scalar")) {}
  double apply(double x, size_t i) const { return (x + static_cast<double>(vector_.at(i))) * scalar_; }

private:
  Attributes::Floats vector_;
  double scalar_;
};
const OpCreator<AddVecScalarMul> addVecScalarMul(id("AddVecScalarMulFloat"));

class Reduce : public Op {
public:
  explicit Reduce(std::vector<std::string> kinds) : kinds_(std::move(kinds)) {
    for (const auto &kind : kinds_)
      if (kind != "sum" && kind != "mean") throw std::runtime_error("unknown reduction " + kind);
  }
  void setup() override {
    for (int i = 0; i < numInputs(); ++i) outInfo(i).set(inType(i), {});
  }
  void compute(const Kernel &kernel) const override {
    for (int i = 0; i < kernel.numInputs(); ++i) {
      const int64_t count = kernel.inInfo(i).nelms();
      const float *x = kernel.in<float>(i);
      const float sum = std::accumulate(x, x + count, 0.0f);
      *kernel.out<float>(i) = kinds_.at(static_cast<size_t>(i)) == "mean" ? sum / static_cast<float>(count) : sum;
    }
  }

private:
  std::vector<std::string> kinds_;
};
const OpCreator<Reduce> reduce(id("ReduceOp"), [](const Attributes &a) {
  return std::make_unique<Reduce>(std::vector<std::string>{a.getAttribute<Attributes::String>("reduction")});
});
const OpCreator<Reduce> threeReduce(id("ThreeReduceOp", 1, 3, 3), [](const Attributes &a) {
  return std::make_unique<Reduce>(a.getAttribute<Attributes::Strings>("reductions"));
});

class ManyAttributes : public Elementwise<ManyAttributes> {
public:
  explicit ManyAttributes(const Attributes &a) {
    using A = Attributes;
    all_ = a.getAttribute<A::Float>("float_one") == 1.0f && a.getAttribute<A::Float>("float_minus_two") == -2.0f &&
           a.getAttribute<A::Int>("int_zero") == 0 && a.getAttribute<A::Int>("int_minus_five") == -5 &&
           a.getAttribute<A::Floats>("floats_one_two_three") == A::Floats{1, 2, 3} &&
           a.getAttribute<A::Floats>("floats_minus_one_two_three") == A::Floats{-1, -2, -3} &&
           a.getAttribute<A::Ints>("ints_one_two_three") == A::Ints{1, 2, 3} &&
           a.getAttribute<A::Ints>("ints_minus_one_two_three") == A::Ints{-1, -2, -3} &&
           a.getAttribute<A::String>("a_string") == "string with quotes and slash \" ' \\ end" &&
           a.getAttribute<A::String>("another_string") == "another" &&
           a.getAttribute<A::Strings>("strs") == A::Strings{"abc", "def", "ghi"} &&
           a.getAttribute<A::Strings>("more_strs") == A::Strings{"tab\t", "newline\n"};
  }
  double apply(double x, size_t) const { return all_ ? x + 1.0 : x; }

private:
  bool all_ = false;
};
const OpCreator<ManyAttributes> manyAttributes(id("ManyAttributeOp"));

// Adds the version under which it is registered.
template <int version> class AddVersion : public Elementwise<AddVersion<version>> {
public:
  double apply(double x, size_t) const { return x + version; }
};
const OpCreator<AddVersion<1>> version1(id("AddVersion", 1));
const OpCreator<AddVersion<3>> version3(id("AddVersion", 3));

// sqrt, whose gradient uses the output: 0.5 / y. Two gradient operators, to test that contributions are added.
class HalfSqrtGrad : public Op {
public:
  void setup() override { outInfo(0) = inInfo(0); }
  void compute(const Kernel &kernel) const override {
    for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i)
      kernel.out<float>(0)[i] = 0.25f * kernel.in<float>(0)[i] / kernel.in<float>(1)[i];
  }
  std::vector<GradInOutMapper> gradInputInfo() const override {
    return {{1, 0, GradOpInType::Out}, {0, 0, GradOpInType::GradOut}};
  }
  std::map<int, int> gradOutToNonGradIn() const override { return {{0, 0}}; }
};
class Sqrt : public Op {
public:
  void setup() override { outInfo(0) = inInfo(0); }
  void compute(const Kernel &kernel) const override {
    for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i)
      kernel.out<float>(0)[i] = std::sqrt(kernel.in<float>(0)[i]);
  }
  std::vector<std::unique_ptr<Op>> getGradOps() const override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<HalfSqrtGrad>());
    ops.push_back(std::make_unique<HalfSqrtGrad>());
    return ops;
  }
};
const OpCreator<Sqrt> sqrtOp(id("Sqrt"));

// Fails where the attribute says.
class Fail : public Elementwise<Fail> {
public:
  explicit Fail(const Attributes &a) : when_(a.getAttribute<Attributes::String>("when")) {
    if (when_ == "constructor") throw std::runtime_error("the constructor gave up");
  }
  void setup() override {
    if (when_ == "setup") throw std::runtime_error("the shapes gave up");
    Elementwise<Fail>::setup();
  }
  double apply(double x, size_t) const {
    if (when_ == "compute") throw std::runtime_error("the kernel gave up");
    if (when_ == "odd") throw 42;
    return x;
  }

private:
  std::string when_;
};
const OpCreator<Fail> fail(id("Fail"));

} // namespace
