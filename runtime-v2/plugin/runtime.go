package plugin

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"

	"containerd-task-manager/plugin/api"
	"containerd-task-manager/plugin/internal/supervisor"
)

// Runtime is the task manager as containerd's services hold it.
type Runtime struct {
	managers *supervisor.Supervisor
	records  *records
}

var _ runtime.PlatformRuntime = (*Runtime)(nil)

// ID of the plugin.
func (r *Runtime) ID() string {
	return plugins.RuntimePluginV2.String() + "." + taskID
}

// Close stops the manager when containerd stops. Containers go on.
func (r *Runtime) Close() error {
	return r.managers.Close()
}

// Create starts or joins a shim and creates a task.
func (r *Runtime) Create(ctx context.Context, id string, opts runtime.CreateOpts) (runtime.Task, error) {
	known := false
	if opts.SandboxID != "" {
		var err error
		if known, err = r.records.knowsSandbox(ctx, opts.SandboxID); err != nil {
			return nil, err
		}
	}
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Create(ctx, createRequest(id, opts, known))
	if err != nil {
		return nil, native(err)
	}
	return r.task(response.Task), nil
}

func createRequest(id string, opts runtime.CreateOpts, sandboxKnown bool) *api.CreateRequest {
	request := &api.CreateRequest{
		Id:              id,
		Spec:            typeurl.MarshalProto(opts.Spec),
		Stdin:           opts.IO.Stdin,
		Stdout:          opts.IO.Stdout,
		Stderr:          opts.IO.Stderr,
		Terminal:        opts.IO.Terminal,
		Checkpoint:      opts.Checkpoint,
		RestoreFromPath: opts.RestoreFromPath,
		Runtime:         opts.Runtime,
		RuntimeOptions:  typeurl.MarshalProto(opts.RuntimeOptions),
		TaskOptions:     typeurl.MarshalProto(opts.TaskOptions),
		SandboxId:       opts.SandboxID,
		SandboxKnown:    sandboxKnown,
		TaskApiAddress:  opts.Address,
		TaskApiVersion:  opts.Version,
	}
	for _, m := range opts.Rootfs {
		request.Rootfs = append(request.Rootfs, &api.Mount{
			Type:    m.Type,
			Source:  m.Source,
			Target:  m.Target,
			Options: m.Options,
		})
	}
	return request
}

// Get gives one task.
func (r *Runtime) Get(ctx context.Context, id string) (runtime.Task, error) {
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Get(ctx, &api.GetRequest{Id: id})
	if err != nil {
		return nil, native(err)
	}
	return r.task(response.Task), nil
}

// Tasks gives the tasks of the context's namespace, or all.
func (r *Runtime) Tasks(ctx context.Context, all bool) ([]runtime.Task, error) {
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.List(ctx, &api.ListRequest{AllNamespaces: all})
	if err != nil {
		return nil, native(err)
	}
	tasks := make([]runtime.Task, 0, len(response.Tasks))
	for _, t := range response.Tasks {
		tasks = append(tasks, r.task(t))
	}
	return tasks, nil
}

// Delete deletes a task that has ended, and its shim with the last one.
func (r *Runtime) Delete(ctx context.Context, id string) (*runtime.Exit, error) {
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Delete(ctx, &api.DeleteRequest{Id: id})
	if err != nil {
		return nil, native(err)
	}
	return &runtime.Exit{
		Pid:       response.Pid,
		Status:    response.ExitStatus,
		Timestamp: protobuf.FromTimestamp(response.ExitedAt),
	}, nil
}

// PluginInfo answers containerd's introspection service: what a runtime's binary says of itself.
func (r *Runtime) PluginInfo(ctx context.Context, request any) (any, error) {
	asked, ok := request.(*types.RuntimeRequest)
	if !ok {
		return nil, fmt.Errorf("unknown request type %T: %w", request, errdefs.ErrNotImplemented)
	}
	manager, err := r.managers.Client(ctx)
	if err != nil {
		return nil, err
	}
	response, err := manager.Manager.Info(ctx, &api.InfoRequest{Runtime: asked.RuntimePath, Options: asked.Options})
	if err != nil {
		return nil, native(err)
	}
	info := &types.RuntimeInfo{}
	if err := proto.Unmarshal(response.Info, info); err != nil {
		return nil, fmt.Errorf("what %s says of itself: %w", asked.RuntimePath, err)
	}
	return info, nil
}

func (r *Runtime) task(t *api.Task) *task {
	return &task{process: process{
		managers:  r.managers,
		namespace: t.GetNamespace(),
		container: t.GetId(),
	}, pid: t.GetPid()}
}

// in is the context with the namespace that a task is in: it was given out in a context of its own.
func in(ctx context.Context, namespace string) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}
