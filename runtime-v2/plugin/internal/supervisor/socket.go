package supervisor

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/containerd/errdefs"
)

// Socket connects to managers that somebody else runs.
type Socket struct {
	// Address is a path, with or without unix:// before it.
	Address string
}

// Launch connects to the manager.
func (s Socket) Launch(ctx context.Context) (Peer, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", strings.TrimPrefix(s.Address, "unix://"))
	if err != nil {
		// Whatever is wrong with the socket may be mended by whoever runs the manager.
		return nil, fmt.Errorf("%v: %w", err, errdefs.ErrUnavailable)
	}
	return stranger{connection}, nil
}

// stranger is a manager that runs and ends without us.
type stranger struct{ connection net.Conn }

func (s stranger) Connection() net.Conn { return s.connection }

func (s stranger) Stop() error { return nil }
