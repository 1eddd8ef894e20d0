// The methods that add steps to a plan, one file per family, as in chaski/ml/cpu/operations.
#pragma once

#include <nanobind/nanobind.h>

#include "../plan_builder.h"

namespace chaski {

void bind_attention(nanobind::module_& m, nanobind::class_<PlanBuilder>& plan);
void bind_elements(nanobind::module_& m, nanobind::class_<PlanBuilder>& plan);
void bind_lora(nanobind::module_& m, nanobind::class_<PlanBuilder>& plan);
void bind_moe(nanobind::class_<PlanBuilder>& plan);
void bind_products(nanobind::class_<PlanBuilder>& plan);
void bind_recurrent(nanobind::class_<PlanBuilder>& plan);
void bind_rows(nanobind::module_& m, nanobind::class_<PlanBuilder>& plan);

}  // namespace chaski
