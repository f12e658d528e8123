package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"containerd-task-manager/plugin/api"
	"containerd-task-manager/plugin/internal/fakemanager"
)

// at is a client of what listens at the address.
func at(t *testing.T, address string) *Client {
	t.Helper()
	peer, socket, err := Socket{Address: address}.Launch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(peer, socket)
	t.Cleanup(client.end)
	return client
}

// created is what a call comes back with.
type created struct {
	response *api.CreateResponse
	err      error
}

func (c *Client) createInBackground(ctx context.Context) <-chan created {
	result := make(chan created, 1)
	go func() {
		response, err := c.Create(ctx, &api.CreateRequest{Id: "c"})
		result <- created{response, err}
	}()
	return result
}

func within(t *testing.T, result <-chan created) created {
	t.Helper()
	select {
	case got := <-result:
		return got
	case <-time.After(limit):
		t.Fatal("the create does not come back")
	}
	return created{}
}

func TestCancelledCreateIsCancelledAtTheManagerAndNoOtherCallIs(t *testing.T) {
	_, dir := command(t, "well")
	address := filepath.Join(dir, "m.sock")
	asked, cancelled := make(chan string, 2), make(chan struct{})
	goOn := make(chan struct{})
	end, err := (&fakemanager.Manager{
		OnCreate: func(ctx context.Context, r *api.CreateRequest) (*api.CreateResponse, error) {
			_, hasDeadline := ctx.Deadline()
			asked <- r.Id
			select {
			case <-ctx.Done():
				close(cancelled)
				return nil, ctx.Err()
			case <-goOn:
				if hasDeadline {
					return nil, errdefs.ErrInternal
				}
				return &api.CreateResponse{Task: &api.Task{Id: r.Id, Pid: 5}}, nil
			}
		},
	}).Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	client := at(t, address)
	ctx, cancel := context.WithCancel(context.Background())
	one, other := client.createInBackground(ctx), client.createInBackground(context.Background())
	<-asked
	<-asked
	cancel()
	if got := within(t, one); !errors.Is(got.err, context.Canceled) {
		t.Errorf("%v", got.err)
	}
	select {
	case <-cancelled:
	case <-time.After(limit):
		t.Fatal("the manager does not learn of it")
	}
	if client.isGone() {
		t.Error("the common connection is closed")
	}
	close(goOn)
	if got := within(t, other); got.err != nil || got.response.Task.Pid != 5 {
		t.Errorf("%+v", got)
	}
}

func TestDeadlineOfACreateIsItsCancellation(t *testing.T) {
	_, dir := command(t, "well")
	address := filepath.Join(dir, "m.sock")
	cancelled := make(chan struct{})
	end, err := (&fakemanager.Manager{
		OnCreate: func(ctx context.Context, _ *api.CreateRequest) (*api.CreateResponse, error) {
			<-ctx.Done()
			close(cancelled)
			return nil, ctx.Err()
		},
	}).Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if got := within(t, at(t, address).createInBackground(ctx)); !errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("%v", got.err)
	}
	<-cancelled
}

// undoing answers a create only when its caller has closed the half that it writes to.
func undoing(t *testing.T, address string, answer *ttrpc.Response) <-chan struct{} {
	t.Helper()
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	asked := make(chan struct{})
	payload, err := proto.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		// The first is the common one, on which nothing is asked.
		common, err := listener.Accept()
		if err != nil {
			return
		}
		defer common.Close()
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		head := make([]byte, 10)
		if _, err := io.ReadFull(connection, head); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, connection, int64(binary.BigEndian.Uint32(head))); err != nil {
			return
		}
		close(asked)
		_, _ = io.Copy(io.Discard, connection)
		frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
		// The stream's number, and that this is a response.
		frame = append(append(frame, head[4:8]...), 2, 0)
		_, _ = connection.Write(append(frame, payload...))
	}()
	return asked
}

func TestWhatBecameOfACancelledCreateIsWaitedFor(t *testing.T) {
	task, err := proto.Marshal(&api.CreateResponse{Task: &api.Task{Id: "c", Pid: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		answer *ttrpc.Response
		pid    uint32
	}{
		"undone":        {answer: &ttrpc.Response{Status: &spb.Status{Code: int32(codes.Canceled), Message: "given up"}}},
		"done too soon": {answer: &ttrpc.Response{Payload: task}, pid: 5},
	} {
		t.Run(name, func(t *testing.T) {
			_, dir := command(t, "well")
			address := filepath.Join(dir, "m.sock")
			asked := undoing(t, address, test.answer)
			ctx, cancel := context.WithCancel(context.Background())
			result := at(t, address).createInBackground(ctx)
			<-asked
			cancel()
			got := within(t, result)
			switch {
			case test.pid == 0 && !errors.Is(got.err, context.Canceled):
				t.Errorf("%v", got.err)
			case test.pid != 0 && (got.err != nil || got.response.Task.Pid != test.pid):
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestCreateOfAManagerThatHasGoneIsUnavailable(t *testing.T) {
	_, dir := command(t, "well")
	address := filepath.Join(dir, "m.sock")
	called, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	end, err := (&fakemanager.Manager{
		OnCreate: func(context.Context, *api.CreateRequest) (*api.CreateResponse, error) {
			close(called)
			<-over
			return nil, nil
		},
	}).Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	client := at(t, address)
	result := client.createInBackground(context.Background())
	<-called
	end()
	if got := within(t, result); !errors.Is(got.err, ttrpc.ErrClosed) {
		t.Errorf("under way: %v", got.err)
	}
	if got := within(t, client.createInBackground(context.Background())); !errdefs.IsUnavailable(got.err) {
		t.Errorf("afterwards: %v", got.err)
	}
}
