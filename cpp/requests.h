#pragma once

#include "arrays.h"

void bind_requests(nb::module_& module);
