#include "sim/report/formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/json_text.hpp"

namespace moesim::report {
namespace {

// Characters, not bytes: continuation bytes of UTF-8 take no room.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char character) {
    return (static_cast<unsigned char>(character) & 0xC0) != 0x80;
  }));
}

// The JSON number of a text in digits.
nlohmann::ordered_json json_digits(const std::string& digits) {
  return digits.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(digits);
}

nlohmann::ordered_json json_of(const Cell& cell) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag;
  if (const auto* text = std::get_if<std::string>(&cell); text != nullptr && !text->empty()) {
    return *text;
  }
  if (std::holds_alternative<std::string>(cell)) return nullptr;
  return json_digits(text_of(cell));
}

}  // namespace

Format parse_format(const std::string& text) { return value_in(format_names, text, "--format"); }

std::string figure(double value) {
  if (!std::isfinite(value)) return "";
  if (value == 0) return "0";  // never "-0"
  return fmt::format("{:.9g}", value);
}

nlohmann::ordered_json json_figure(double value) { return json_digits(figure(value)); }

std::string text_of(const Cell& cell) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *whole);
  if (const auto* number = std::get_if<double>(&cell)) return figure(*number);
  if (const auto* decimal = std::get_if<Decimal>(&cell)) return decimal->text();
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  return "";
}

std::string to_csv(const std::vector<std::string>& columns, const std::vector<CellRow>& rows) {
  std::string text = csv_line(columns);
  for (const CellRow& row : rows) {
    std::vector<std::string> line;
    for (const Cell& cell : row) line.push_back(text_of(cell));
    text += csv_line(line);
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<std::string>& columns, const CellRow& row) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (std::size_t index = 0; index < columns.size(); ++index) {
    object[columns[index]] = json_of(row[index]);
  }
  return object;
}

std::string to_json_text(const std::vector<std::string>& columns,
                         const std::vector<CellRow>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const CellRow& row : rows) array.push_back(to_json(columns, row));
  return json_text(array, 2) + "\n";
}

std::string empty_slots_name(const std::vector<Cell>& padding) {
  bool any_sends = false;
  for (const Cell& cell : padding) {
    if (text_of(cell) == "none") return "empty";
    any_sends = any_sends || !is_absent(cell);
  }
  return any_sends ? "padded" : "empty";
}

std::string align(const std::vector<std::vector<std::string>>& lines,
                  const std::vector<bool>& right) {
  std::vector<std::size_t> widths(right.size(), 0);
  for (const std::vector<std::string>& line : lines) {
    for (std::size_t column = 0; column < line.size(); ++column) {
      widths[column] = std::max(widths[column], width(line[column]));
    }
  }
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    std::string out;
    for (std::size_t column = 0; column < line.size(); ++column) {
      const bool is_last = column + 1 == line.size();
      const std::string room(is_last && !right[column] ? 0 : widths[column] - width(line[column]),
                             ' ');
      out += column == 0 ? "" : "  ";
      out += right[column] ? room + line[column] : line[column] + room;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

}  // namespace moesim::report
