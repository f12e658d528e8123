package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
)

// native turns what a call came back with into the errors that containerd's services tell apart. A manager that has gone
// is Unavailable: of the task it says nothing, above all not that there is none.
func native(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ttrpc.ErrClosed):
		return fmt.Errorf("the task manager has ended: %w", errdefs.ErrUnavailable)
	case errors.Is(err, errdefs.ErrUnavailable):
		// Said here and not by a manager.
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// The caller's own limit. It has no status in it, and a conversion would make an unknown error of it.
		return err
	}
	return errgrpc.ToNative(err)
}
