; A kernel that libnvvm (NVVM 7.0.1, -arch=compute_90) compiles wrongly: see nvvm-nan-constant.md.
; 0/0 is NaN, so the kernel stores 1. It stores 2.
target datalayout = "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-f32:32:32-f64:64:64-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

define void @kernel(i32 addrspace(1)* %y) {
  %v1 = fdiv float 0.0, 0.0
  %v2 = fcmp uno float %v1, %v1
  %v3 = select i1 %v2, i32 1, i32 2
  store i32 %v3, i32 addrspace(1)* %y
  ret void
}

!nvvm.annotations = !{!0}
!0 = !{void (i32 addrspace(1)*)* @kernel, !"kernel", i32 1}
!nvvmir.version = !{!1}
!1 = !{i32 2, i32 0}
