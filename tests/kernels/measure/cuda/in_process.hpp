#pragma once

#include <functional>
#include <string>

// What `body` returns, run in a process with one variable set; what it throws, after "thrown: ".
std::string in_process(const std::string& variable, const std::string& value,
                       const std::function<std::string()>& body);
