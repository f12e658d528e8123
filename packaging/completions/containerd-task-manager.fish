# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_containerd_task_manager_global_optspecs
    string join \n h/help V/version
end

function __fish_containerd_task_manager_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_containerd_task_manager_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_containerd_task_manager_using_subcommand
    set -l cmd (__fish_containerd_task_manager_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -s h -l help -d 'Print help'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -s V -l version -d 'Print version'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -f -a "serve" -d 'Serve tasks, and pass all other calls to containerd'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -f -a "attach" -d 'Serve a containerd that has been built with the plugin, which starts this itself'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -f -a "ls" -d 'List shims: whose they are, where they are, what they cost'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -f -a "doctor" -d 'Find what shims and managers have left behind; exits with 1 if anything is left'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -s c -l config -d 'Settings, as TOML [default: /etc/containerd-task-manager/config.toml, if it is there]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l containerd -d 'Socket of the containerd behind [default: /run/containerd/containerd.sock]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l containerd-ttrpc -d 'Its ttrpc socket, where shims send events [default: that of --containerd with .ttrpc]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l containerd-binary -d 'Its executable, which shims older than ttrpc run to publish events [default: from PATH]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l address -d 'Socket to serve [default: /run/containerd-task-manager/containerd.sock]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l socket-mode -d 'Permissions of that socket, octal [default: 0600]' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l socket-gid -d 'Group of that socket, by number' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l state -d 'Directory of bundles; emptied by a reboot [default: /run/containerd-task-manager/tasks]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l root -d 'Directory of what outlives a reboot [default: /var/lib/containerd-task-manager/tasks]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l shim-socket-dir -d 'Directory for the sockets of shims [default: theirs]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l shim-debug -d 'Have shims write debug logs' -r -f -a "true\t''
false\t''"
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l metrics -d 'Serve Prometheus metrics at this address, such as 127.0.0.1:9464 [default: none]' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l log-level -d 'What to log: error, warn, info, debug, trace, or a filter by module [default: info]' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -l log-format -d 'How to log: text or json [default: text]' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand serve" -s h -l help -d 'Print help'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand attach" -l address -d 'Socket to serve' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand attach" -l metrics -d 'Serve Prometheus metrics at this address, such as 127.0.0.1:9464 [default: none]' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand attach" -l log-level -d 'What to log: error, warn, info, debug, trace, or a filter by module' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand attach" -l log-format -d 'How to log: text or json' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand attach" -l until-eof -d 'Stop when standard input ends; containers go on'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand attach" -s h -l help -d 'Print help'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand ls" -l state -d 'State directory, of this daemon or of any containerd; may be given several times [default: that of the settings]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand ls" -s c -l config -d 'Settings, as TOML [default: /etc/containerd-task-manager/config.toml, if it is there]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand ls" -s n -l namespace -d 'Only this namespace' -r
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand ls" -l json -d 'Print JSON'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand ls" -s h -l help -d 'Print help'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l state -d 'State directory, of this daemon or of any containerd; may be given several times [default: that of the settings]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -s c -l config -d 'Settings, as TOML [default: /etc/containerd-task-manager/config.toml, if it is there]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l containerd -d 'Socket of the containerd whose sandboxes may have shims without tasks [default: that of the settings]' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l sockets -d 'Directory of shims\' sockets; may be given several times' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l runtime-root -d 'Directory of OCI runtimes\' state, with one directory per namespace' -r -F
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l fix -d 'Remove what is proven dead'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l json -d 'Print JSON'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -l everything -d 'Look at younger things too; only for a machine on which nothing is being created'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand help; and not __fish_seen_subcommand_from serve attach ls doctor help" -f -a "serve" -d 'Serve tasks, and pass all other calls to containerd'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand help; and not __fish_seen_subcommand_from serve attach ls doctor help" -f -a "attach" -d 'Serve a containerd that has been built with the plugin, which starts this itself'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand help; and not __fish_seen_subcommand_from serve attach ls doctor help" -f -a "ls" -d 'List shims: whose they are, where they are, what they cost'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand help; and not __fish_seen_subcommand_from serve attach ls doctor help" -f -a "doctor" -d 'Find what shims and managers have left behind; exits with 1 if anything is left'
complete -c containerd-task-manager -n "__fish_containerd_task_manager_using_subcommand help; and not __fish_seen_subcommand_from serve attach ls doctor help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
