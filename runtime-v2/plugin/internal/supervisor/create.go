package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"containerd-task-manager/plugin/api"
)

// undoLimit is for a manager to undo a creation that was given up: it waits for the OCI runtime to end, then for the shim,
// then kills what is left, each for a few seconds.
const undoLimit = 45 * time.Second

// Create makes this call on a connection of its own, since ttrpc knows no other way to give one up than to close its
// connection.
//
// When the context ends, the half that we write to is closed, and the answer is waited for still: it says whether the
// creation is undone, or came to its end before it could be. So a caller that is told of an error can take it that nothing
// is left, and remove what the container was made of.
func (c *Client) Create(ctx context.Context, request *api.CreateRequest) (*api.CreateResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	socket, err := c.peer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	connection := ttrpc.NewClient(socket)
	defer connection.Close()

	type outcome struct {
		response *api.CreateResponse
		err      error
	}
	answered := make(chan outcome, 1)
	go func() {
		response, err := api.NewManagerClient(connection).Create(context.WithoutCancel(ctx), request)
		answered <- outcome{response, err}
	}()
	select {
	case came := <-answered:
		return came.response, came.err
	case <-ctx.Done():
	}
	// An error says that the manager has closed it, and that the answer is there, or none will come.
	_ = socket.CloseWrite()
	limit := time.NewTimer(undoLimit)
	defer limit.Stop()
	select {
	case came := <-answered:
		if came.err != nil {
			// What has been undone, or what failed by itself meanwhile: to the caller it is its own end.
			return nil, ctx.Err()
		}
		return came.response, nil
	case <-limit.C:
		return nil, fmt.Errorf("%w; the task manager does not say what has become of %s: %w",
			ctx.Err(), request.Id, errdefs.ErrUnavailable)
	}
}
