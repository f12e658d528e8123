package plugin

import (
	"context"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"

	"containerd-task-manager/plugin/internal/supervisor"
)

// process is one process of a container: its init where execID is empty.
type process struct {
	managers  *supervisor.Supervisor
	namespace string
	container string
	execID    string
}

var _ runtime.ExecProcess = (*process)(nil)

// call makes one call of the task service for a process, in its namespace.
func call[Request, Response any](
	ctx context.Context,
	p *process,
	method func(api.TTRPCTaskService, context.Context, Request) (Response, error),
	request Request,
) (Response, error) {
	manager, err := p.managers.Client(ctx)
	if err != nil {
		var none Response
		return none, err
	}
	response, err := method(manager.Task, in(ctx, p.namespace), request)
	return response, native(err)
}

// ID of the process: the exec's, or the container's.
func (p *process) ID() string {
	if p.execID != "" {
		return p.execID
	}
	return p.container
}

// State asks for the process's state.
func (p *process) State(ctx context.Context) (runtime.State, error) {
	request := &api.StateRequest{ID: p.container, ExecID: p.execID}
	response, err := call(ctx, p, api.TTRPCTaskService.State, request)
	if err != nil {
		return runtime.State{}, err
	}
	return runtime.State{
		Pid:        response.Pid,
		Status:     status(response.Status),
		Stdin:      response.Stdin,
		Stdout:     response.Stdout,
		Stderr:     response.Stderr,
		Terminal:   response.Terminal,
		ExitStatus: response.ExitStatus,
		ExitedAt:   protobuf.FromTimestamp(response.ExitedAt),
	}, nil
}

func status(s tasktypes.Status) runtime.Status {
	switch s {
	case tasktypes.Status_CREATED:
		return runtime.CreatedStatus
	case tasktypes.Status_RUNNING:
		return runtime.RunningStatus
	case tasktypes.Status_STOPPED:
		return runtime.StoppedStatus
	case tasktypes.Status_PAUSED:
		return runtime.PausedStatus
	case tasktypes.Status_PAUSING:
		return runtime.PausingStatus
	}
	return 0
}

// Kill sends a signal.
func (p *process) Kill(ctx context.Context, signal uint32, all bool) error {
	request := &api.KillRequest{ID: p.container, ExecID: p.execID, Signal: signal, All: all}
	_, err := call(ctx, p, api.TTRPCTaskService.Kill, request)
	return err
}

// ResizePty sets the size of the process's terminal.
func (p *process) ResizePty(ctx context.Context, size runtime.ConsoleSize) error {
	request := &api.ResizePtyRequest{ID: p.container, ExecID: p.execID, Width: size.Width, Height: size.Height}
	_, err := call(ctx, p, api.TTRPCTaskService.ResizePty, request)
	return err
}

// CloseIO ends the process's standard input.
func (p *process) CloseIO(ctx context.Context) error {
	request := &api.CloseIORequest{ID: p.container, ExecID: p.execID, Stdin: true}
	_, err := call(ctx, p, api.TTRPCTaskService.CloseIO, request)
	return err
}

// Start starts the process.
func (p *process) Start(ctx context.Context) error {
	_, err := call(ctx, p, api.TTRPCTaskService.Start, &api.StartRequest{ID: p.container, ExecID: p.execID})
	return err
}

// Wait waits for the process's end.
//
// It goes on over the end of a manager, since the next one knows the process too. CRI takes a wait that fails for the end
// of its container, which it then kills: so an error here must mean that nobody will ever know of the process again. For
// the same reason a wait does not come back when containerd itself is about to stop.
func (p *process) Wait(ctx context.Context) (*runtime.Exit, error) {
	request := &api.WaitRequest{ID: p.container, ExecID: p.execID}
	for {
		manager, err := p.managers.Await(ctx)
		if err != nil {
			return nil, err
		}
		response, err := manager.Task.Wait(in(ctx, p.namespace), request)
		if err == nil {
			return &runtime.Exit{
				Status:    response.ExitStatus,
				Timestamp: protobuf.FromTimestamp(response.ExitedAt),
			}, nil
		}
		err = native(err)
		// A manager that is about to end cancels its calls. Ours are cancelled by our own context only.
		cancelled := errdefs.IsCanceled(err) && ctx.Err() == nil
		if !errdefs.IsUnavailable(err) && !cancelled {
			return nil, err
		}
		if err := pause(ctx, waitAgain); err != nil {
			return nil, err
		}
	}
}

// waitAgain is the time between two tries of a wait, for a manager that answers and cannot say: it looks for a shim then,
// which takes it seconds.
const waitAgain = 200 * time.Millisecond

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Delete deletes an exec that has ended. Tasks are deleted through the [Runtime].
func (p *process) Delete(ctx context.Context) (*runtime.Exit, error) {
	response, err := call(ctx, p, api.TTRPCTaskService.Delete, &api.DeleteRequest{ID: p.container, ExecID: p.execID})
	if err != nil {
		return nil, err
	}
	return &runtime.Exit{
		Pid:       response.Pid,
		Status:    response.ExitStatus,
		Timestamp: protobuf.FromTimestamp(response.ExitedAt),
	}, nil
}
