; A reduced kernel that libnvvm (NVVM 7.0.1, -arch=compute_90) compiles wrongly: see nvvm-dropped-shift.md.
; It stores (8 i + 5 >> 2) ^ x for i = 0 to 7: the numbers 1, 3, 5, ... 15. It stores (8 i + 5) ^ x: 5, 13, 21, ... 61.
target datalayout = "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-f32:32:32-f64:64:64-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
target triple = "nvptx64-nvidia-cuda"


define void @kernel(i64 %v0, i64 %v1) {
entry:
  %v3 = call i32 asm "mov.u32 $0, %tid.x;", "=r"()
  %v4 = sext i32 %v3 to i64
  %v5 = trunc i64 %v4 to i32
  %v6 = sext i32 %v5 to i64
  %v7 = alloca i64, i64 5
  store i64 0, i64* %v7
  %v8 = getelementptr inbounds i64, i64* %v7, i32 1
  store i64 8, i64* %v8
  %v9 = getelementptr inbounds i64, i64* %v7, i32 2
  store i64 1, i64* %v9
  %v10 = getelementptr inbounds i64, i64* %v7, i32 3
  store i64 8, i64* %v10
  %v11 = getelementptr inbounds i64, i64* %v7, i32 4
  store i64 0, i64* %v11
  %v22 = alloca i64, i64 2
  %v12 = alloca i64, i64 5
  br label %L13

L13:
  %v14 = load i64, i64* %v10
  %v15 = icmp sgt i64 %v14, 0
  %v16 = load i64, i64* %v11
  %v17 = sub i64 %v14, 1
  %v18 = load i64, i64* %v9
  %v19 = add i64 %v16, %v18
  %v20 = select i1 %v15, i64 %v17, i64 %v14
  %v21 = select i1 %v15, i64 %v19, i64 %v16
  store i64 %v20, i64* %v10
  store i64 %v21, i64* %v11
  store i64 %v16, i64* %v22
  %v23 = zext i1 %v15 to i64
  %v24 = getelementptr inbounds i64, i64* %v22, i32 1
  store i64 %v23, i64* %v24
  %v25 = load i64, i64* %v22
  %v26 = load i64, i64* %v24
  %v27 = icmp ne i64 %v26, 0
  br i1 %v27, label %L28, label %L68

L28:
  store i64 0, i64* %v12
  %v29 = getelementptr inbounds i64, i64* %v12, i32 1
  store i64 4, i64* %v29
  %v30 = getelementptr inbounds i64, i64* %v12, i32 2
  store i64 1, i64* %v30
  %v31 = getelementptr inbounds i64, i64* %v12, i32 3
  store i64 4, i64* %v31
  %v32 = getelementptr inbounds i64, i64* %v12, i32 4
  store i64 0, i64* %v32
  br label %L33

L33:
  %v34 = load i64, i64* %v31
  %v35 = icmp sgt i64 %v34, 0
  %v36 = load i64, i64* %v32
  %v37 = sub i64 %v34, 1
  %v38 = load i64, i64* %v30
  %v39 = add i64 %v36, %v38
  %v40 = select i1 %v35, i64 %v37, i64 %v34
  %v41 = select i1 %v35, i64 %v39, i64 %v36
  store i64 %v40, i64* %v31
  store i64 %v41, i64* %v32
  %v42 = alloca i64, i64 2
  store i64 %v36, i64* %v42
  %v43 = zext i1 %v35 to i64
  %v44 = getelementptr inbounds i64, i64* %v42, i32 1
  store i64 %v43, i64* %v44
  %v45 = load i64, i64* %v42
  %v46 = load i64, i64* %v44
  %v47 = icmp ne i64 %v46, 0
  br i1 %v47, label %L48, label %L13

L48:
  %v49 = mul i64 %v25, 8
  %v50 = add i64 %v49, 5
  %v51 = mul i64 %v25, 4
  %v52 = add i64 %v51, %v45
  %v53 = mul i64 %v52, 128
  %v54 = add i64 %v53, %v6
  %v55 = mul i64 %v54, 4
  %v56 = add i64 %v1, %v55
  %v57 = trunc i64 %v50 to i32
  %v58 = zext i32 %v57 to i64
  %v59 = lshr i64 %v58, 2
  %v60 = trunc i64 %v59 to i32
  %v61 = add i64 %v0, %v55
  %v62 = inttoptr i64 %v61 to i8 addrspace(1)*
  %v63 = bitcast i8 addrspace(1)* %v62 to i32 addrspace(1)*
  %v64 = load i32, i32 addrspace(1)* %v63
  %v65 = xor i32 %v60, %v64
  %v66 = inttoptr i64 %v56 to i8 addrspace(1)*
  %v67 = bitcast i8 addrspace(1)* %v66 to i32 addrspace(1)*
  store i32 %v65, i32 addrspace(1)* %v67
  br label %L33

L68:
  ret void
}

!nvvm.annotations = !{!0}
!nvvmir.version = !{!5}

!0 = !{void (i64, i64)* @kernel, !"kernel", i32 1}
!5 = !{i32 2, i32 0, i32 3, i32 2}
