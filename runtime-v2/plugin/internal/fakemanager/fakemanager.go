// Package fakemanager is a task manager for tests: it answers as it is told and remembers what it was asked.
package fakemanager

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"containerd-task-manager/plugin/api"
)

// Manager answers both services. Calls without a function of their own are answered empty.
type Manager struct {
	taskapi.TTRPCTaskService

	OnLoad   func(*api.LoadRequest) (*api.LoadResponse, error)
	OnCreate func(context.Context, *api.CreateRequest) (*api.CreateResponse, error)
	OnGet    func(context.Context, *api.GetRequest) (*api.GetResponse, error)
	OnList   func(context.Context, *api.ListRequest) (*api.ListResponse, error)
	OnDelete func(context.Context, *api.DeleteRequest) (*api.DeleteResponse, error)
	OnInfo   func(context.Context, *api.InfoRequest) (*api.InfoResponse, error)
	OnState  func(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error)
	OnWait   func(context.Context, *taskapi.WaitRequest) (*taskapi.WaitResponse, error)
	OnKill   func(context.Context, *taskapi.KillRequest) (*emptypb.Empty, error)

	mu    sync.Mutex
	loads []*api.LoadRequest
}

// Serve answers on a socket until the context ends.
func (m *Manager) Serve(ctx context.Context, address string) error {
	listener, err := net.Listen("unix", address)
	if err != nil {
		return err
	}
	return m.serve(ctx, listener)
}

// Listen binds a socket and answers on it in the background; the function that is given back ends it, connections and all.
func (m *Manager) Listen(address string) (func(), error) {
	listener, err := net.Listen("unix", address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.serve(ctx, listener)
	}()
	return func() { cancel(); <-ended }, nil
}

func (m *Manager) serve(ctx context.Context, listener net.Listener) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	api.RegisterManagerService(server, (*managerService)(m))
	taskapi.RegisterTTRPCTaskService(server, (*taskService)(m))
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	err = server.Serve(ctx, listener)
	if errors.Is(err, ttrpc.ErrServerClosed) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Loads are the Load requests that came.
func (m *Manager) Loads() []*api.LoadRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*api.LoadRequest(nil), m.loads...)
}

type managerService Manager

func answer[Request, Response any](
	ctx context.Context, on func(context.Context, *Request) (*Response, error), request *Request,
) (*Response, error) {
	if on == nil {
		return new(Response), nil
	}
	response, err := on(ctx, request)
	return response, errgrpc.ToGRPC(err)
}

func (s *managerService) Load(_ context.Context, r *api.LoadRequest) (*api.LoadResponse, error) {
	s.mu.Lock()
	s.loads = append(s.loads, r)
	s.mu.Unlock()
	if s.OnLoad != nil {
		response, err := s.OnLoad(r)
		return response, errgrpc.ToGRPC(err)
	}
	return &api.LoadResponse{ProtocolMajor: api.ProtocolMajor}, nil
}

func (s *managerService) Create(ctx context.Context, r *api.CreateRequest) (*api.CreateResponse, error) {
	return answer(ctx, s.OnCreate, r)
}

func (s *managerService) Get(ctx context.Context, r *api.GetRequest) (*api.GetResponse, error) {
	return answer(ctx, s.OnGet, r)
}

func (s *managerService) List(ctx context.Context, r *api.ListRequest) (*api.ListResponse, error) {
	return answer(ctx, s.OnList, r)
}

func (s *managerService) Delete(ctx context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
	return answer(ctx, s.OnDelete, r)
}

func (s *managerService) Info(ctx context.Context, r *api.InfoRequest) (*api.InfoResponse, error) {
	return answer(ctx, s.OnInfo, r)
}

// taskService answers what the tests ask; the rest is the embedded nil, which nobody calls.
type taskService Manager

func (s *taskService) State(ctx context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return answer(ctx, s.OnState, r)
}

func (s *taskService) Wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	return answer(ctx, s.OnWait, r)
}

func (s *taskService) Kill(ctx context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
	return answer(ctx, s.OnKill, r)
}
