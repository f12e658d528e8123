//! Makes the messages of this project's own service. The parser is a pure one, so that no `protoc` is needed; it is the one
//! that `containerd-shim-protos` is built with anyway.

fn main() {
    println!("cargo::rerun-if-changed=manager");
    protobuf_codegen::Codegen::new()
        .pure()
        .include("manager/v1")
        .input("manager/v1/manager.proto")
        // Reflection is never used, here as elsewhere.
        .customize(protobuf_codegen::Customize::default().lite_runtime(true))
        .cargo_out_dir("manager")
        .run_from_script();
}
