// Package supervisor keeps a task manager up and gives out the connection to it.
//
// A manager is brought up in three steps, and is no use before the last: it is launched (started, or found at its socket),
// dialled, and told its surroundings by Load. When it goes, the next one is brought up, with pauses that grow while that
// fails. What is said to it in Load is read anew each time.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"

	"containerd-task-manager/plugin/api"
)

const (
	// firstLimit is how long containerd's start waits for the first manager. One that was left by a killed containerd
	// may be about to end and have the socket still.
	firstLimit = 30 * time.Second
	// patience is how long a call waits for a manager that is being brought up again. It takes a fraction of a second;
	// callers have limits of their own of a few seconds and more.
	patience = 5 * time.Second
	// shortestPause and longestPause are between two tries to bring a manager up.
	shortestPause = 50 * time.Millisecond
	longestPause  = 5 * time.Second
	// loadLimit is for a manager to find all shims: it gives each ten seconds, all at once, after those that an earlier
	// manager may take to settle. One that hangs is ended, and the next one tried.
	loadLimit = 2 * time.Minute
	// steady is how long a manager has to live for its end to be one of its own, and not one more failure to come up.
	steady = 10 * time.Second
)

// Client is the connection to one manager.
type Client struct {
	Manager api.ManagerService
	Task    taskapi.TTRPCTaskService

	connection *ttrpc.Client
	peer       Peer
	// gone is closed when the connection is.
	gone chan struct{}
}

// Peer is a manager that has been launched.
type Peer interface {
	// Dial connects to its socket.
	Dial(ctx context.Context) (*net.UnixConn, error)
	// Stop ends it if it is ours to end, and returns when it has ended.
	Stop() error
}

// Launcher launches managers, one after the other, and connects to them.
type Launcher interface {
	Launch(ctx context.Context) (Peer, *net.UnixConn, error)
}

// LoadFunc makes the first call that a manager gets.
type LoadFunc func(ctx context.Context) (*api.LoadRequest, error)

// Supervisor keeps a manager up.
type Supervisor struct {
	launcher Launcher
	load     LoadFunc
	stop     context.CancelFunc
	// ended is closed when the last manager has ended, after Close.
	ended chan struct{}

	mu sync.Mutex
	// client is nil while no manager is up.
	client *Client
	// changed is closed and made anew whenever client changes.
	changed chan struct{}
	closed  bool
}

// Start brings the first manager up, and keeps one up from then on.
func Start(ctx context.Context, launcher Launcher, load LoadFunc) (*Supervisor, error) {
	s := &Supervisor{
		launcher: launcher,
		load:     load,
		ended:    make(chan struct{}),
		changed:  make(chan struct{}),
	}
	first, cancel := context.WithTimeout(ctx, firstLimit)
	defer cancel()
	client, err := s.bringFirst(first)
	if err != nil {
		return nil, err
	}
	// Not ctx: that is the context of containerd's start.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.show(client)
	go s.keep(background, client)
	return s, nil
}

// Client gives the manager that is up, or waits a while for one.
func (s *Supervisor) Client(ctx context.Context) (*Client, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		client, changed, closed := s.look()
		switch {
		case closed:
			return nil, fmt.Errorf("the task manager is stopped: %w", errdefs.ErrUnavailable)
		case client != nil:
			return client, nil
		}
		select {
		case <-changed:
		case <-limited.Done():
			// A caller whose own limit is shorter is told the cause all the same.
			if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return nil, err
			}
			return nil, fmt.Errorf("the task manager does not come up again: %w", errdefs.ErrUnavailable)
		}
	}
}

// Await gives the manager that is up, or waits for one as long as the context lasts. After Close none comes.
func (s *Supervisor) Await(ctx context.Context) (*Client, error) {
	for {
		client, changed, _ := s.look()
		if client != nil {
			return client, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close stops the manager, if it was started here, and returns when it has ended.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	<-s.ended
	return nil
}

func (s *Supervisor) look() (*Client, <-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && s.client.isGone() {
		// Nobody has got round to showing it.
		return nil, s.changed, s.closed
	}
	return s.client, s.changed, s.closed
}

// show makes a client the one that is given out; none if it is nil.
func (s *Supervisor) show(client *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = client
	close(s.changed)
	s.changed = make(chan struct{})
}

// keep watches over a manager, and over those that come after it, until the context ends.
func (s *Supervisor) keep(ctx context.Context, client *Client) {
	defer close(s.ended)
	wait := shortestPause
	for {
		since := time.Now()
		select {
		case <-client.gone:
		case <-ctx.Done():
		}
		s.show(nil)
		client.end()
		if ctx.Err() != nil {
			return
		}
		log.G(ctx).Error("the task manager has ended; starting another. Containers go on")
		if time.Since(since) > steady {
			wait = shortestPause
		}
		if client, wait = s.bringNext(ctx, wait); client == nil {
			return
		}
		s.show(client)
	}
}

// bringNext tries until a manager is up; the context's end gives none. The pause before the first try is wait; that
// before the next one, should this manager not last, is given back.
func (s *Supervisor) bringNext(ctx context.Context, wait time.Duration) (*Client, time.Duration) {
	for {
		if !pause(ctx, wait) {
			return nil, wait
		}
		wait = min(2*wait, longestPause)
		client, err := s.bring(ctx)
		if err == nil {
			return client, wait
		}
		if ctx.Err() != nil {
			return nil, wait
		}
		log.G(ctx).WithError(err).Error("the task manager does not come up; trying again")
	}
}

// bringFirst tries until a manager is up, the context ends, or there is a reason that time does not mend.
func (s *Supervisor) bringFirst(ctx context.Context) (*Client, error) {
	wait := shortestPause
	for {
		client, err := s.bring(ctx)
		if err == nil || lasting(err) {
			return client, err
		}
		log.G(ctx).WithError(err).Warn("the task manager does not come up; trying again")
		if !pause(ctx, wait) {
			return nil, err
		}
		wait = min(2*wait, longestPause)
	}
}

// lasting tells whether an error would be the same at the next try.
func lasting(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) ||
		errdefs.IsNotImplemented(err)
}

// bring brings one manager up.
func (s *Supervisor) bring(ctx context.Context) (*Client, error) {
	peer, socket, err := s.launcher.Launch(ctx)
	if err != nil {
		return nil, err
	}
	client := newClient(peer, socket)
	if err := s.tell(ctx, client); err != nil {
		client.end()
		return nil, err
	}
	return client, nil
}

// tell makes the manager's first call.
func (s *Supervisor) tell(ctx context.Context, client *Client) error {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	request, err := s.load(ctx)
	if err != nil {
		return err
	}
	response, err := client.Manager.Load(ctx, request)
	if err != nil {
		return fmt.Errorf("load: %w", errgrpc.ToNative(err))
	}
	if response.ProtocolMajor != api.ProtocolMajor {
		return fmt.Errorf("the task manager speaks version %d of the protocol, and version %d is spoken here: %w",
			response.ProtocolMajor, api.ProtocolMajor, errdefs.ErrFailedPrecondition)
	}
	log.G(ctx).WithFields(log.Fields{
		"version":  response.Version,
		"protocol": fmt.Sprintf("%d.%d", response.ProtocolMajor, response.ProtocolMinor),
		"tasks":    response.Tasks,
		"removed":  response.Removed,
	}).Info("the task manager is up")
	return nil
}

func newClient(peer Peer, socket *net.UnixConn) *Client {
	gone := make(chan struct{})
	connection := ttrpc.NewClient(socket, ttrpc.WithOnClose(sync.OnceFunc(func() { close(gone) })))
	return &Client{
		Manager:    api.NewManagerClient(connection),
		Task:       taskapi.NewTTRPCTaskClient(connection),
		connection: connection,
		peer:       peer,
		gone:       gone,
	}
}

func (c *Client) isGone() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// end ends the manager first, so that it can answer what it is at. The connection goes with it; where the manager is
// somebody else's it is closed here.
func (c *Client) end() {
	if err := c.peer.Stop(); err != nil {
		log.L.WithError(err).Error("stopping the task manager")
	}
	c.connection.Close()
}

// dial connects to a socket. Whatever is wrong with it may be mended by the next manager, or whoever runs one.
func dial(ctx context.Context, address string) (*net.UnixConn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, fmt.Errorf("the task manager does not listen (%v): %w", err, errdefs.ErrUnavailable)
	}
	return connection.(*net.UnixConn), nil
}

// pause waits; false if the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
