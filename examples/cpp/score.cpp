// Scores images with a model that `procon export part.procon --to onnx -o part-onnx` wrote.
//
//     apt install libonnxruntime-dev nlohmann-json3-dev        # headers of ONNX Runtime 1.20 or newer
//     g++ -std=c++17 -O2 -I/usr/include/onnxruntime score.cpp -lonnxruntime -o score
//     ./score part-onnx parts/new/0001.ppm ...
//
// Images are binary PPM with 8 bits (P6): the bytes of a frame, as the library of a camera gives them, with a short head.
// Prints a JSON line for each image. Scores are those of procon.deploy.Runtime: resize() does what Pillow does, byte for
// byte, but for images taller than wide, where Pillow 13 may take rows before columns: then bytes differ by at most one.

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

using Json = nlohmann::json;

constexpr int kBits = 22;  // of the fixed-point weights

struct Image {
  int width, height;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]
};

struct Weights {
  int first;                         // source pixel that the first weight belongs to
  std::vector<std::int64_t> values;  // fixed point
};

// Weights of a bilinear, antialiased resize of `input` pixels to `output`, for each pixel.
std::vector<Weights> weights(int input, int output) {
  const double scale = double(input) / output, stretch = std::max(scale, 1.0);
  std::vector<Weights> result;
  for (int place = 0; place < output; ++place) {
    const double center = (place + 0.5) * scale;
    const int first = std::max(0, int(center - stretch + 0.5));
    const int end = std::min(input, int(center + stretch + 0.5));
    std::vector<double> values;
    double total = 0;
    for (int source = first; source < end; ++source) {
      values.push_back(std::max(0.0, 1 - std::abs((source - center + 0.5) / stretch)));
      total += values.back();
    }
    Weights fixed{first, {}};
    for (double value : values) fixed.values.push_back(std::int64_t(0.5 + value / total * (1 << kBits)));
    result.push_back(fixed);
  }
  return result;
}

std::uint8_t to_byte(std::int64_t sum) { return std::uint8_t(std::clamp<std::int64_t>(sum >> kBits, 0, 255)); }

// Columns first, then rows, each rounded to bytes.
Image resize(Image image, int rows, int columns) {
  if (columns != image.width) {
    Image wide{columns, image.height, std::vector<std::uint8_t>(std::size_t(image.height) * columns * 3)};
    const auto steps = weights(image.width, columns);
    for (int y = 0; y < image.height; ++y)
      for (int x = 0; x < columns; ++x)
        for (int channel = 0; channel < 3; ++channel) {
          std::int64_t sum = 1 << (kBits - 1);
          for (std::size_t step = 0; step < steps[x].values.size(); ++step)
            sum += image.rgb[(std::size_t(y) * image.width + steps[x].first + step) * 3 + channel] * steps[x].values[step];
          wide.rgb[(std::size_t(y) * columns + x) * 3 + channel] = to_byte(sum);
        }
    image = std::move(wide);
  }
  if (rows == image.height) return image;
  Image result{columns, rows, std::vector<std::uint8_t>(std::size_t(rows) * columns * 3)};
  const auto steps = weights(image.height, rows);
  for (int y = 0; y < rows; ++y)
    for (int place = 0; place < columns * 3; ++place) {
      std::int64_t sum = 1 << (kBits - 1);
      for (std::size_t step = 0; step < steps[y].values.size(); ++step)
        sum += image.rgb[(std::size_t(steps[y].first) + step) * columns * 3 + place] * steps[y].values[step];
      result.rgb[std::size_t(y) * columns * 3 + place] = to_byte(sum);
    }
  return result;
}

Image read_image(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  int width = 0, height = 0, most = 0;
  if (!(file >> kind >> width >> height >> most) || kind != "P6" || most != 255 || width < 1 || height < 1)
    throw std::runtime_error(path + ": expected a binary PPM with 8 bits (P6) without comments; convert the image");
  file.get();  // one white space ends the head
  Image image{width, height, std::vector<std::uint8_t>(std::size_t(width) * height * 3)};
  if (!file.read(reinterpret_cast<char*>(image.rgb.data()), std::streamsize(image.rgb.size())))
    throw std::runtime_error(path + ": has fewer pixels than its head says; write it again");
  return image;
}

// The input of the model [1, 3, rows, columns]: resized, cut from the centre, scaled and normalised.
std::vector<float> prepare(const Image& image, const Json& input) {
  const int height = input["resize"][0], width = input["resize"][1];
  const int rows = input["crop"][0], columns = input["crop"][1];
  const int top = (height - rows) / 2, left = (width - columns) / 2;
  const double scale = input["scale"];
  const auto mean = input["mean"].get<std::vector<double>>(), deviation = input["std"].get<std::vector<double>>();
  const Image resized = resize(image, height, width);
  std::vector<float> values(std::size_t(3) * rows * columns);
  for (int channel = 0; channel < 3; ++channel)
    for (int y = 0; y < rows; ++y)
      for (int x = 0; x < columns; ++x) {
        const double byte = resized.rgb[(std::size_t(y + top) * width + x + left) * 3 + channel];
        values[(std::size_t(channel) * rows + y) * columns + x] = float((byte * scale - mean[channel]) / deviation[channel]);
      }
  return values;
}

int main(int count, char** arguments) try {
  if (count < 3) {
    std::cerr << "usage: score FOLDER IMAGE.ppm ...\n";
    return 2;
  }
  const std::string folder = arguments[1];
  std::ifstream file(folder + "/manifest.json");
  if (!file) throw std::runtime_error(folder + ": has no manifest.json; export a model into it");
  const Json manifest = Json::parse(file);
  const Json& input = manifest["input"];
  const std::vector<std::int64_t> shape{1, 3, input["crop"][0], input["crop"][1]};
  Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "procon");
  Ort::Session session(environment, (folder + "/" + manifest["model"].get<std::string>()).c_str(), Ort::SessionOptions{});
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const char* names[] = {"pixels"};
  const char* outputs[] = {"score", "map"};
  for (int number = 2; number < count; ++number) {
    std::vector<float> pixels = prepare(read_image(arguments[number]), input);
    auto tensor = Ort::Value::CreateTensor<float>(memory, pixels.data(), pixels.size(), shape.data(), shape.size());
    auto found = session.Run(Ort::RunOptions{nullptr}, names, &tensor, 1, outputs, 2);
    const float score = *found[0].GetTensorData<float>();
    const float* map = found[1].GetTensorData<float>();
    const float peak = *std::max_element(map, map + found[1].GetTensorTypeAndShapeInfo().GetElementCount());
    const Json limits = manifest.value("threshold", Json());
    const Json threshold = limits.is_object() ? limits.value("threshold", Json()) : Json();
    // A score that is no number, or a model without a threshold, gives no verdict, and never "good".
    const bool known = std::isfinite(score) && threshold.is_number();
    const std::string verdict = !known ? "none" : double(score) > threshold.get<double>() ? "anomalous" : "good";
    std::cout << Json{{"image", arguments[number]}, {"score", score}, {"threshold", threshold}, {"verdict", verdict}, {"peak", peak}}
              << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 2;
}
