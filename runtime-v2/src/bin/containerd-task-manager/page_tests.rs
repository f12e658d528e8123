//! The man page and the completions are made from the command line, and are as it is.
//!
//! They are files of the workspace, so that neither the daemon nor who installs it needs the
//! generators. `make pages` writes them anew.

use std::{env, fs, path::Path};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::Arguments;

const NAME: &str = "containerd-task-manager";

/// The options of each command, as a man page has them.
fn commands() -> String {
    let mut page = String::new();
    for command in Arguments::command().get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        page += &format!(".SS {}\n{about}.\n", command.get_name());
        page += &options(command);
    }
    page.trim_end().to_owned()
}

fn options(command: &Command) -> String {
    let mut section = Vec::new();
    clap_mangen::Man::new(command.clone()).render_options_section(&mut section).unwrap();
    let section = String::from_utf8(section).unwrap();
    // What comes before the first option is for a page of its own, and so is the name of the quote.
    section[section.find(".TP").unwrap()..].replace("\\*(Aq", "'")
}

fn completion(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), NAME, &mut script);
    String::from_utf8(script).unwrap()
}

#[test]
fn pages_and_completions_are_those_of_the_command_line() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let template = fs::read_to_string(packaging.join(format!("man/{NAME}.8.in"))).unwrap();
    let generated = [
        (format!("man/{NAME}.8"), template.replace("@COMMANDS@", &commands())),
        (format!("completions/{NAME}.bash"), completion(Shell::Bash)),
        (format!("completions/_{NAME}"), completion(Shell::Zsh)),
        (format!("completions/{NAME}.fish"), completion(Shell::Fish)),
    ];
    for (file, text) in generated {
        let path = packaging.join(&file);
        if env::var_os("PAGES").is_some() {
            fs::write(path, text).unwrap();
        } else {
            let there = fs::read_to_string(path).unwrap_or_default();
            assert!(there == text, "{file} is out of date: make pages");
        }
    }
}
