#pragma once

#include "arrays.h"

void bind_json_check(nb::module_& module);
